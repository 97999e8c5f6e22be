"""Time a candidate beside the incumbent, alternately, and check the outputs of the timed calls.

Blocks of ABBA in random order; each visit makes a few calls on values drawn from seeds that the runner is told one at a
time. A block's ratio is the ratio of medians, so that what drifts slowly (clocks, temperature, a neighbour) cancels.
A workload stops when its interval has decided, or at the largest number of blocks.

The times are the runner's claims. They are held against what the harness knows itself: the device's measured ceilings
(a time that physics does not allow), its own clock around the calls (a gain that cannot be seen from outside), and the
bytes of timed calls chosen after the fact.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from kopt_mcp import stats
from kopt_mcp.evaluator.compare import BadReference
from kopt_mcp.evaluator.process import CandidateProcess, Fault
from kopt_mcp.evaluator.records import Ceilings, Ratio, Timing, WorkloadResult
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs, judge_all, refused
from kopt_mcp.evaluator.runner import fingerprint
from kopt_mcp.evaluator.timing import WallClock
from kopt_mcp.problem import Case, Problem, Workload

MIN_BLOCKS, MAX_BLOCKS = 5, 16
BUDGET_S = 40.0
"""Time after which no further blocks are begun; what is undecided then stays so, with its interval."""
_WARM_UP = 3
_CALLS = (2, 4)
"""Fewest and most timed calls of one visit to an arm; slow calls get fewer."""
_VISIT_US = 60_000.0
"""Time that one visit may take, where `_CALLS` leaves room."""
_EARLY_BLOCKS, _EARLY_FACTOR = 3, 10
"""A ratio ten times beyond the bar needs no more than three blocks to be believed."""
_CHECKED_SHARE = 0.1
"""Share of the candidate's visits of which one output is compared, besides its first and last call."""
_HARD = ("large", "mixed", "outlier")
"""Distributions on which a short cut shows."""
_QUICK_RESAMPLES = 300
"""Of the bootstrap that decides whether to go on; the reported interval takes more."""
_SPIN_US = (50.0, 20_000.0)
_KEEP_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
_FLOOR_SHARE = {"cpu": 0.5, "cuda": 0.9}
"""Share of the time at the measured ceilings below which a claim is not believed. A CPU's caches hide more."""
_VISIBLE_SHARE = 0.25
"""Least share of a claimed gain that must show on the harness's own clock."""
_TAIL_US = 150.0
"""Time that waiting for all streams may take on the host without any work behind it."""
PROCESS_EFFECT_US, _SHORT_US = 0.25, 10.0
"""How far two processes running one kernel may differ for good, and the length of call above which that fades; from
the A/A trials in experiments/precision."""
RESOLUTION_US = 0.05
"""Shortest time that is ever reported: a call that does nothing takes this long, not zero or less."""


@dataclass
class Arm:
    """One of the two sides: its process, and what it claimed on one workload."""

    process: CandidateProcess
    samples: list[float] = field(default_factory=list)
    unseen: list[float] = field(default_factory=list)
    """The harness's own time around each call, less the claim: drawing, flushing, fingerprints, and any lie."""
    tails: list[float] = field(default_factory=list)
    warm_us: float | None = None
    checks: int = 0


class WorkloadBench:
    """The timing of one workload: the candidate, and beside it the incumbent where there is one.

    Every method may raise `Fault`, which the candidate answers for unless it is an `IncumbentFault`.
    """

    def __init__(
        self, problem: Problem, workload: Workload, arms: Sequence[Arm], device: str, limits: PhysicalLimits
    ) -> None:
        self.workload = workload
        self.ratios: list[float] = []
        self.decided = False
        self._arms = list(arms)
        self._problem, self._device, self._limits = problem, device, limits
        self._kind = "cpu" if device == "cpu" else "cuda"
        self._case = problem.case(workload)
        self._random = Random(secrets.randbits(64))
        self._outputs: list[dict[str, Any]] = []
        self._output_bytes = 1
        self._spin_us = _SPIN_US[0]
        self._calls = 5
        self._evictor = WallClock(limits.cache_bytes) if self._kind == "cpu" else None

    def warm_up(self) -> None:
        """Compile, fill caches, find out how long the device must be kept busy, and check one output of each arm."""
        self._outputs = describe_outputs(expected_outputs(self._problem, self._case, _seed(), self._device))
        self._output_bytes = max(1, sum(o["bytes"] for o in self._outputs))
        with ThreadPoolExecutor(len(self._arms)) as pool:
            last = list(pool.map(self._wake_up, self._arms))
        self._spin_us = min(2 * max(claim["host_us"] for claim, _ in last) + _SPIN_US[0], _SPIN_US[1])
        affordable = min(_VISIT_US / max(wall for _, wall in last), _KEEP_BYTES[self._kind] / self._output_bytes)
        self._calls = int(max(_CALLS[0], min(_CALLS[1], affordable)))
        for arm in self._arms:
            self._check_one(arm)
            warm = stats.median(self._ask(arm, "warm", _seed(), count=7)["us"])
            arm.warm_us = max(warm - self._limits.empty_us, RESOLUTION_US)

    def _wake_up(self, arm: Arm) -> tuple[dict[str, Any], float]:
        """The first calls of an arm, of which the last counts."""
        return [self._sample(arm, _seed(), alone=False) for _ in range(_WARM_UP)][-1]

    def block(self) -> None:
        """One ABBA (or BAAB) block."""
        order = [0, 1, 1, 0] if len(self._arms) == 2 else [0, 0]
        if self._random.random() < 0.5:
            order = [len(self._arms) - 1 - i for i in order]
        times: list[list[float]] = [[] for _ in self._arms]
        for index in order:
            times[index] += self._visit(self._arms[index])
        if len(self._arms) == 2:
            self.ratios.append(stats.median(times[1]) / stats.median(times[0]))

    def interval(self) -> Ratio | None:
        """Incumbent time / candidate time so far."""
        if not self.ratios:
            return None
        value, low, high = stats.bootstrap_interval(self.ratios)
        return Ratio(value, *stats.widen(value, low, high, self._process_effect()), len(self.ratios))

    def _process_effect(self) -> float:
        """Relative half-width of what differs between two processes that run the same kernel.

        It does not average out within one evaluation, and matters for short calls only.
        """
        if self._kind == "cpu":
            return 0.0
        us = stats.median(self._arms[0].samples)
        return PROCESS_EFFECT_US * min(1.0, _SHORT_US / us) / us

    def decide(self, floor: float) -> None:
        """Set `decided` once more blocks would not change the verdict.

        That is when the whole interval lies above, below or within the bar, or when what blocks can narrow is small
        beside what they cannot.
        """
        blocks = len(self.ratios)
        if len(self._arms) == 1:
            self.decided = len(self._arms[0].samples) >= 2 * MIN_BLOCKS * self._calls
        if blocks < _EARLY_BLOCKS:
            return
        value, low, high = stats.bootstrap_interval(self.ratios, resamples=_QUICK_RESAMPLES)
        effect = self._process_effect()
        ends = stats.widen(value, low, high, effect)
        gain = stats.least_gain(floor)
        if blocks < MIN_BLOCKS:
            self.decided = _beyond(ends, 1 + _EARLY_FACTOR * gain)
            return
        inside = low > 1 / (1 + gain) and high < 1 + gain
        self.decided = inside or _beyond(ends, 1 + gain) or high / low - 1 < effect

    def finish(self) -> WorkloadResult:
        """The last checks, and the result."""
        candidate = self._arms[0]
        self._check_one(candidate)
        self._limits.require_possible(self._needed(), self._output_bytes, stats.median(candidate.samples))
        self._require_nothing_behind(candidate)
        if len(self._arms) == 2:
            self._require_visible_gain(candidate, self._arms[1])
        return WorkloadResult(
            workload=self.workload.name,
            status="PASSED",
            checks=candidate.checks,
            timing=self._timing(candidate),
            incumbent=self._timing(self._arms[1]) if len(self._arms) == 2 else None,
            ratio=self.interval(),
        )

    def _needed(self) -> Case:
        """The case with what any kernel must move and do: at the least its outputs."""
        certain = self._problem.certain
        return replace(
            self._case,
            bytes=self._case.bytes if "bytes" in certain else float(self._output_bytes),
            flops=self._case.flops if "flops" in certain else 0.0,
        )

    def _visit(self, arm: Arm) -> list[float]:
        """A few timed calls of one arm; some are checked, chosen after they were made."""
        if self._kind != "cpu":
            self._sample(arm, _seed())  # the first call after a switch of contexts pays for the switch
        prints: dict[int, list[int]] = {}
        times = []
        for seed in (_seed() for _ in range(self._calls)):
            claim, wall_us = self._sample(arm, seed, keep=True)
            prints[seed] = claim["print"]
            us = max(claim["us"] - self._limits.empty_us, RESOLUTION_US)
            times.append(us)
            arm.unseen.append(wall_us - us)
            arm.tails.append(claim["tail_us"])
        arm.samples += times
        if arm is self._arms[0] and self._random.random() < _CHECKED_SHARE:
            self._compare(arm, self._random.choice(list(prints)), prints)
        self._ask(arm, "forget", 0)
        return times

    def _check_one(self, arm: Arm) -> None:
        """Time one more call, not counted, and compare its output; on hard values where the problem allows them.

        A kernel that takes a short cut in timed calls, because they are all drawn from one distribution, is wrong here.
        """
        allowed = list(self._problem.distributions)
        seed, distribution = _seed(), self._random.choice([d for d in _HARD if d in allowed] or allowed or ["normal"])
        try:
            expected_outputs(self._problem, self._case, seed, self._device, distribution)
        except BadReference:
            distribution = "normal"
        claim, _ = self._sample(arm, seed, keep=True, distribution=distribution)
        self._compare(arm, seed, {seed: claim["print"]}, distribution)
        self._ask(arm, "forget", 0)

    def _compare(self, arm: Arm, seed: int, prints: dict[int, list[int]], distribution: str = "normal") -> None:
        """The output of one timed call: unchanged since it was returned, and right."""
        outputs = arm.process.outputs(self._ask(arm, "fetch", seed))
        if fingerprint(outputs) != prints[seed]:
            raise self._fault(arm, "CHEATED", "the output of a timed call changed after the call had returned")
        verdict = judge_all(outputs, expected_outputs(self._problem, self._case, seed, self._device, distribution))
        arm.checks += 1
        if verdict.status != "PASSED":
            raise self._fault(arm, verdict.status, f"the output of a timed call is wrong: {verdict.detail}")
        if refused(self._problem, outputs, self._case, seed, self._device, distribution):
            raise self._fault(arm, "INCORRECT_NUMERICAL", "the task's own check refuses the output of a timed call")

    def _sample(
        self, arm: Arm, seed: int, keep: bool = False, alone: bool = True, distribution: str = "normal"
    ) -> tuple[dict[str, Any], float]:
        """One timed call; the claim, and the harness's own time around it in microseconds."""
        begin = time.perf_counter()
        if self._evictor is not None:
            # A CPU's last cache is shared: what the harness evicts, a runner cannot leave out to pay for a lie.
            self._ask(arm, "prepare", seed, alone, distribution)
            drawn = time.perf_counter()
            self._evictor.evict()
            begin += time.perf_counter() - drawn
        claim = self._ask(arm, "sample", seed, alone, distribution, warm=self._evictor is not None, keep=keep)
        wall_us = (time.perf_counter() - begin) * 1e6
        numbers = [claim.get(k) for k in ("us", "host_us", "tail_us")]
        if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers) or not 0 < claim["us"] <= wall_us:
            raise self._fault(arm, "CHEATED", f"a call is claimed to take {claim.get('us')} us of {wall_us:.0f} us")
        return claim, wall_us

    def _ask(
        self, arm: Arm, op: str, seed: int, alone: bool = True, distribution: str = "normal", **fields: Any
    ) -> dict[str, Any]:
        try:
            arm.process.workload(self._case, self._outputs, alone)
            return arm.process.ask(
                op, alone, seed=seed, distribution=distribution, layout="contiguous", spin_us=self._spin_us, **fields
            )
        except Fault as fault:
            raise self._fault(arm, fault.status, fault.detail) from None

    def _fault(self, arm: Arm, status: str, detail: str) -> Fault:
        kind = Fault if arm is self._arms[0] else IncumbentFault
        return kind(status, f"{self.workload.name}: {detail}")

    def _require_nothing_behind(self, arm: Arm) -> None:
        """No work may go on where the call's own stream does not wait for it.

        Coarse: what an output needs is also copied right behind the call, and is wrong where it comes late.
        """
        tail, us = stats.median(arm.tails), stats.median(arm.samples)
        if tail > max(_TAIL_US, us):
            text = f"{tail:.0f} us of work went on after the call's stream had finished ({us:.1f} us were claimed)"
            raise self._fault(arm, "CHEATED", text)

    def _require_visible_gain(self, candidate: Arm, incumbent: Arm) -> None:
        """A large gain must show on the harness's own clock, or the claim was not the whole of the time."""
        gain = stats.median(incumbent.samples) - stats.median(candidate.samples)
        if gain < stats.median(incumbent.samples) / 5:
            return
        # Low quantiles: a busy machine only ever adds to what is not seen.
        hidden = stats.quantile(candidate.unseen, 0.1) - stats.quantile(incumbent.unseen, 0.1)
        noise = 50.0 + 2 * sum(_low_spread(arm.unseen) + _spread(arm.unseen) for arm in (candidate, incumbent))
        if hidden > max(noise, (1 - _VISIBLE_SHARE) * gain):
            text = f"a gain of {gain:.1f} us a call is claimed, of which {hidden:.1f} us cannot be seen from outside"
            raise self._fault(candidate, "SUSPECT", text)

    def _timing(self, arm: Arm) -> Timing:
        return Timing(
            latency_us=stats.median(arm.samples),
            p10_us=stats.quantile(arm.samples, 0.1),
            p90_us=stats.quantile(arm.samples, 0.9),
            samples=len(arm.samples),
            method="wall" if self._kind == "cpu" else "cuda_events",
            cache="l2_cold",
            warm_us=arm.warm_us,
        )


class IncumbentFault(Fault):
    """The incumbent failed, which says nothing about the candidate."""


@dataclass(frozen=True)
class PhysicalLimits:
    """What no kernel on this device can beat, from ceilings measured on it."""

    ceilings: Ceilings
    cache_bytes: int
    kind: str
    empty_us: float
    """What an empty measurement reads, taken in the harness and subtracted from every claim alike."""

    def require_possible(self, case: Case, output_bytes: int, us: float) -> None:
        """Refuse a time below what the bytes and operations of the problem need.

        Outputs may still be in the cache when the call ends, so as much of them as fits there is not counted.

        Raises:
            Fault: `CHEATED`.
        """
        moved = max(0.0, case.bytes - min(output_bytes, self.cache_bytes))
        if self.kind == "cpu":
            moved = max(0.0, moved - self.cache_bytes)
        fastest = max(self.ceilings.copy_gbps, self.ceilings.triad_gbps) * 1e3
        needed = [moved / fastest]
        key = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(case.workload.dtype, "")
        rates = [self.ceilings.tflops.get(k, 0.0) for k in (key, "tf32" if key == "fp32" else key)]
        if max(rates) > 0:
            needed.append(case.flops / (max(rates) * 1e6))
        floor = _FLOOR_SHARE[self.kind] * max(needed)
        if us < floor:
            text = (
                f"{us:.2f} us are claimed where this device needs at least {floor:.2f} us for the bytes and operations "
                f"of the problem; the work cannot have been done in the time measured"
            )
            raise Fault("CHEATED", f"{case.workload.name}: {text}")


def combine(results: Sequence[WorkloadResult]) -> Ratio | None:
    """Geometric mean of the workloads' ratios; the half-widths add up in quadrature on the logarithmic scale."""
    ratios = [r.ratio for r in results if r.ratio is not None]
    if not ratios:
        return None
    value = stats.geometric_mean([r.value for r in ratios])
    down = math.sqrt(sum(math.log(r.value / max(r.low, 1e-9)) ** 2 for r in ratios)) / len(ratios)
    up = math.sqrt(sum(math.log(r.high / r.value) ** 2 for r in ratios)) / len(ratios)
    return Ratio(value, value * math.exp(-down), value * math.exp(up), min(r.blocks for r in ratios))


def _beyond(ends: tuple[float, float], bar: float) -> bool:
    low, high = ends
    return low > bar or high < 1 / bar


def _seed() -> int:
    return 1 + secrets.randbits(40)


def _spread(values: Sequence[float]) -> float:
    """Median absolute deviation: large on a busy machine, where an honest kernel must not be suspected."""
    middle = stats.median(values)
    return stats.median([abs(v - middle) for v in values])


def _low_spread(values: Sequence[float]) -> float:
    """How far the lower values lie apart."""
    return stats.quantile(values, 0.3) - stats.quantile(values, 0.1)
