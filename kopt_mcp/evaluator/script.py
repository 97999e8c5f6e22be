"""A problem file's own command line and pytest hook: the same evaluator, without the loop and without a server.

`python test_softmax.py --json` prints one line of JSON and exits 0 only if the kernel is right.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from kopt_mcp import stats
from kopt_mcp.evaluator.clearing import remove
from kopt_mcp.evaluator.harness import Harness, HarnessError
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.records import Evaluation, Job, Timing
from kopt_mcp.evaluator.timing import clock_for
from kopt_mcp.problem import Problem, ProblemError
from kopt_mcp.problems import may_have_computed

_COMPARISON_CALLS = 15


def run(problem: Problem, argv: Sequence[str] | None) -> int:
    """Check and time one kernel; human lines first, then, with `--json`, one line of JSON."""
    options = _parser(problem).parse_args(argv)
    try:
        # Asking torch for a GPU, as the default device does, is enough for a fork to get none.
        report = _report(problem, options, fork=options.device == "cpu" and not may_have_computed())
    except (HarnessError, ProblemError) as error:
        where = {"kernel": problem.name, "gpu": options.device}
        report = {**where, "correctness": False, "status": "fail", "error": str(error)}
    for line in report.pop("lines", []):
        print(line)
    if "error" in report:
        print(report["error"], file=sys.stderr)
    if options.json:
        print(json.dumps(report))
    return 0 if report["correctness"] else 1


def as_test(problem: Problem) -> Callable[[], None]:
    """A function for pytest: checks the default kernel of the problem's folder on the device that is there."""

    def test_kernel() -> None:
        report = _report(problem, _parser(problem).parse_args(["--correctness"]), fork=False)
        assert report["correctness"], report["error"]

    return test_kernel


def _parser(problem: Problem) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=f"Check and time a kernel for the problem {problem.name!r}.")
    parser.add_argument("--kernel", type=Path, default=None, help="the kernel file (default: the one in this folder)")
    parser.add_argument("--device", default=_default_device(problem), help="cpu or cuda:N (default: %(default)s)")
    parser.add_argument("--correctness", action="store_true", help="check only, time nothing")
    parser.add_argument("--json", action="store_true", help="print one line of JSON last")
    return parser


def _report(problem: Problem, options: argparse.Namespace, fork: bool = True) -> dict[str, Any]:
    """What is printed as JSON, and with it as `lines` what is printed for people."""
    kernel = options.kernel or default_kernel(problem)
    if not kernel.is_file():
        raise HarnessError("WorkspaceFailed", f"there is no kernel file {kernel}; name one with --kernel.")
    folder = Path(tempfile.mkdtemp(prefix="kopt-"))
    harness = Harness(options.device, folder, fork)
    try:
        evaluation, timed = _evaluate(harness, problem, kernel, options)
        right = evaluation.status == "PASSED"
        said = f"{evaluation.status}: {evaluation.detail}"
        means, lines = _times(problem, harness, timed)
        return {
            "kernel": problem.name,
            "gpu": harness.torch_device.name,
            "correctness": right,
            **means,
            "speedup": _speedup(problem, timed, options.device, harness) if timed and problem.comparisons else None,
            "status": "pass" if right else "fail",
            **({} if right else {"error": said}),
            "lines": [f"{kernel.name} on {harness.torch_device.name}: {said}", *lines],
        }
    finally:
        harness.close()
        remove(folder)


def _evaluate(
    harness: Harness, problem: Problem, kernel: Path, options: argparse.Namespace
) -> tuple[Evaluation, dict[str, Timing]]:
    """The verdict, and the times of the workloads where it is right and can be timed."""
    content = kernel.read_bytes()
    job = Job("verify", "", "", str(kernel), sha256(content).hexdigest(), options.device)
    evaluation = harness.evaluate(problem, job, _quiet)
    on_interpreter = options.device == "cpu" and b"import triton" in content
    if evaluation.status != "PASSED" or options.correctness or on_interpreter:
        return evaluation, {}
    timing = harness.evaluate(problem, replace(job, kind="benchmark"), _quiet)
    if timing.status != "PASSED":
        return timing, {}
    return evaluation, {r.workload: r.timing for r in timing.workloads if r.timing is not None}


def _times(problem: Problem, harness: Harness, timed: dict[str, Timing]) -> tuple[dict[str, Any], list[str]]:
    """The time and the rate that the problem is about, geometric means over the workloads; and a line for each."""
    us = {name: timing.latency_us for name, timing in timed.items()}
    info = {w.name: w for w in harness.describe(problem).workloads}
    gbps = {name: info[name].bytes / us[name] / 1e3 for name in us}
    tflops = {name: info[name].flops / us[name] / 1e6 for name in us}
    lines = [
        f"  {name}: {us[name]:.2f} us, {gbps[name]:.1f} GB/s, {tflops[name]:.3f} TFLOPS ({one.method}, {one.cache})"
        for name, one in timed.items()
    ]
    rate = {"gbps": gbps} if problem.bound == "memory" else {"tflops": tflops}
    means = {
        kind: round(stats.geometric_mean(list(values.values())), 3) if values else None
        for kind, values in ({"latency_us": us} | rate).items()
    }
    return means, lines


def _speedup(problem: Problem, timed: dict[str, Timing], device: str, harness: Harness) -> float:
    """Geometric mean of the first comparison's time over the kernel's."""
    function = next(iter(problem.comparisons.values()))
    kind = "cpu" if device == "cpu" else "cuda"
    clock = clock_for(kind, harness.torch_device.l2_bytes)
    empty_us, ratios = clock.empty_us, []
    for name, timing in timed.items():
        case = problem.case(problem.for_device(kind, [name])[0])
        args = draw(case.inputs, case.literals, 1, kind).args
        call = partial(function, *args)
        call()
        times = [clock.sample(call, 200.0, warm=False)[1].us for _ in range(_COMPARISON_CALLS)]
        ratios.append((stats.median(times) - empty_us) / timing.latency_us)
    return round(stats.geometric_mean(ratios), 3)


def default_kernel(problem: Problem) -> Path:
    """The problem's own kernel, or the one beside the problem file: a template, or a file named like the entry."""
    if problem.kernel:
        return Path(problem.kernel)
    folder = Path(inspect.getfile(problem.inputs)).resolve().parent
    names = ["triton_template.py", *(f"{problem.entry}{s}" for s in (".py", ".c", ".cpp", ".cu", ".hip"))]
    if problem.name.endswith("-backward"):
        names.insert(0, "triton_backward_template.py")
    return next((folder / n for n in names if (folder / n).is_file()), folder / names[0])


def _default_device(problem: Problem) -> str:
    return "cuda:0" if torch.cuda.is_available() and any("cuda" in w.devices for w in problem.workloads) else "cpu"


def _quiet(fraction: float, text: str) -> None:
    """Progress, which nobody is told."""
