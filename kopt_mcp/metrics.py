"""From times to the experiment's metric, from the device to its roof, from ratios to a verdict. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from kopt_mcp.arguments import shown
from kopt_mcp.errors import InputRefused
from kopt_mcp.evaluator.records import RESOLUTION_US, Evaluation, ProblemInfo, WorkloadInfo, WorkloadResult
from kopt_mcp.events import Measurement
from kopt_mcp.models import Device, Metric
from kopt_mcp.stats import Verdict, aa_floor, geometric_mean, verdict

SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
"""torch's names for types, and the names under which a device lists its peaks."""


def chosen(problem: ProblemInfo, names: Collection[str] | None) -> list[WorkloadInfo]:
    """The problem's workloads, or those of them that are named.

    Raises:
        InputRefused: a name is not one of the problem's workloads.
    """
    if names is None:
        return list(problem.workloads)
    known = {w.name: w for w in problem.workloads}
    for name in names:
        if name not in known:
            raise InputRefused(
                f"workload {shown(name)} is not one of {problem.name!r}; it has {', '.join(known)}; choose of them."
            )
    return [known[name] for name in names]


def value(metric: Metric, workload: WorkloadInfo, latency_us: float) -> float:
    """One workload's figure: 1e9 bytes/s, 1e12 operations/s, or microseconds."""
    if metric == "gbps":
        return workload.bytes / latency_us / 1e3
    if metric == "tflops":
        return workload.flops / latency_us / 1e6
    return latency_us


def measurement(metric: Metric, workloads: Sequence[WorkloadInfo], evaluation: Evaluation) -> Measurement | None:
    """The geometric mean over the timed workloads; None where one of them has no time, or none that was measured."""
    timed_ones = [(r.workload, r.timing) for r in evaluation.workloads if r.timing is not None]
    found = {name: timing for name, timing in timed_ones if timing.latency_us > RESOLUTION_US}
    timed = [w for w in workloads if w.timed]
    if not timed or any(w.name not in found for w in timed):
        return None
    timings = {w.name: found[w.name] for w in timed}
    mean = geometric_mean([value(metric, w, timings[w.name].latency_us) for w in timed])
    return Measurement(value=mean, timings=timings)


def default_metric(problem: ProblemInfo) -> Metric:
    """The metric that fits what limits a good kernel for the problem."""
    metrics: dict[str, Metric] = {"memory": "gbps", "compute": "tflops"}
    return metrics.get(problem.bound, "latency_us")


def check_countable(metric: Metric, workloads: Sequence[WorkloadInfo]) -> None:
    """The problem counts what the metric divides by, and something is timed.

    Raises:
        InputRefused: no workload is timed, or one has no bytes or operations.
    """
    timed = [w for w in workloads if w.timed]
    if not timed:
        raise InputRefused(
            "no workload is timed; nothing can be optimised; drop timed=False from one, or choose others."
        )
    for w in timed:
        counted = {"gbps": w.bytes, "tflops": w.flops, "latency_us": 1.0}[metric]
        if counted <= 0:
            raise InputRefused(
                f"target_metric is {metric!r}, but workload {w.name!r} counts none; complete the problem's bytes or "
                "flops formula, or choose another metric."
            )


def roof(metric: Metric, problem: ProblemInfo, workloads: Sequence[WorkloadInfo], device: Device) -> float | None:
    """The metric at the device's measured limits; None where what it needs was not measured.

    The copy bandwidth for `gbps`, the matrix-product rate of the workload's type for `tflops`; for `latency_us` the
    time that the problem's bytes (memory-bound) or operations (compute-bound) take at these rates.
    """
    timed = [w for w in workloads if w.timed]
    figures = [_best(metric, problem.bound, w, device) for w in timed]
    known = [f for f in figures if f]
    return geometric_mean(known) if known and len(known) == len(figures) else None


def _best(metric: Metric, bound: str, workload: WorkloadInfo, device: Device) -> float | None:
    bandwidth = device.measured_gbps.value if device.measured_gbps else None
    names = (workload.dtype, SHORT.get(workload.dtype, workload.dtype))
    peak = next((device.measured_tflops[n].value for n in names if n in device.measured_tflops), None)
    if metric == "gbps":
        return bandwidth
    if metric == "tflops":
        return peak
    by_memory = workload.bytes / bandwidth / 1e3 if bandwidth else None
    by_compute = workload.flops / peak / 1e6 if peak else None
    return by_compute if bound == "compute" else by_memory


def reached(metric: Metric, value: float, target: float, slack: float = 0.0) -> bool:
    """Whether a value meets the target, or comes within `slack` (a fraction) of it."""
    return value <= target * (1 + slack) if metric == "latency_us" else value >= target * (1 - slack)


def gap(metric: Metric, value: float, target: float) -> float:
    """What is missing to the target, in the metric; 0 when it is met."""
    return max(0.0, value - target if metric == "latency_us" else target - value)


def noise_floor(evaluation: Evaluation) -> float:
    """How far the mean over the workloads may be off, from a kernel timed against itself."""
    return aa_floor([r.ratio.value for r in evaluation.workloads if r.ratio is not None])


def judged(evaluation: Evaluation, floor: float, itself: Evaluation) -> tuple[Verdict | Literal["unusable"], str]:
    """The accept rule on a benchmark; `unusable` where it holds no ratio to judge by.

    Args:
        floor: the noise floor of the mean over the workloads.
        itself: the baseline timed against itself, for the floor of each workload.
    """
    if evaluation.status != "PASSED" or evaluation.ratio is None:
        return "unusable", f"the times cannot be judged ({evaluation.status}): {evaluation.detail or 'no ratio'}"
    if short := [r.workload for r in evaluation.workloads if r.timing and r.timing.latency_us <= RESOLUTION_US]:
        return "unusable", f"a call on {short[0]} takes less than can be told from an empty one's time"
    each = {r.workload: (r.ratio.low, r.ratio.high) for r in evaluation.workloads if r.ratio is not None}
    floors = {r.workload: aa_floor([r.ratio.value]) for r in itself.workloads if r.ratio is not None}
    return verdict(evaluation.ratio.low, evaluation.ratio.high, floor, each, floors)


def gain_pct(result: Evaluation | WorkloadResult) -> float | None:
    """How much faster the candidate was than the incumbent beside it, in percent."""
    return None if result.ratio is None else 100 * (result.ratio.value - 1)
