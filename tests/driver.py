"""A server-side process for tests that kill one, or run two side by side. Not a test itself.

    driver.py experiments ROOT LOCKS TICKS ALIVE   experiments without end; a byte to TICKS before each change of a file
    driver.py benchmarks ROOT LOCKS COUNT          one experiment with COUNT timed iterations, each profiled first
    driver.py baseline ROOT LOCKS TICKS            a baseline with the real evaluator; a byte to TICKS as it goes on

ALIVE is inherited by every process that this one starts, so that whoever reads it learns when the last has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakes
from fakes import FakeEvaluator, WatchedDisk

from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.evaluator.records import Evaluation, Job
from kopt_mcp.lock import Locks
from kopt_mcp.loop import Loop
from kopt_mcp.models import Profile
from kopt_mcp.results import LogResult
from kopt_mcp.watch import Watch

DRIVER = Path(__file__)


def environment() -> dict[str, str]:
    """In which a driver finds the package, wherever it was started."""
    return {**os.environ, "PYTHONPATH": str(DRIVER.parent.parent)}


def plan(base: float) -> tuple[str, ...]:
    """Three changes of a kernel of speed `base`: a wrong one, one within the noise, and one that meets the target."""
    return (fakes.kernel(9.0, VERIFY="INCORRECT_NUMERICAL"), fakes.kernel(base * 1.005), fakes.kernel(base * 6))


class ChildEvaluator(FakeEvaluator):
    """Has a process of its own, as the real one has, which ends when its channel does."""

    def __init__(self, alive: int) -> None:
        super().__init__()
        self._child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[alive])


def speed_of(kernel: Path) -> float:
    return float(kernel.read_text().split("SPEED = ")[1].split("\n")[0])


def experiments(root: Path, locks: Path, ticks: int, alive: int) -> None:
    """Carry on from wherever the folder stands; every answer is acknowledged on standard output."""
    disk = WatchedDisk(lambda name: os.write(ticks, b".") and None)
    loop = Loop(
        root,
        evaluator=ChildEvaluator(alive),
        detect=lambda: [fakes.GPU],
        diagnose=fakes.diagnose,
        locks=Locks(locks, bound_s=0.0),
        disk=disk,
        user_memory=root.parent / "data",
    )
    while True:
        unfinished = [line for line in loop.log().experiments if line.phase != "done"]
        if unfinished:
            name = unfinished[0].experiment
            advance(loop, loop.log(name))
        else:
            base = speed_of(root / "softmax.py")
            name = loop.baseline("softmax.py", target_metric="gbps", target_value=500 * base).experiment
        os.write(1, f"{name} {len((root / 'experiments' / name / 'journal.jsonl').read_bytes())}\n".encode())


def advance(loop: Loop, seen: LogResult) -> None:
    """The one step that is due."""
    name = seen.experiment or ""
    if seen.phase == "diagnosed":
        base = (seen.baseline or 0) / 100
        loop.apply_patch(name, 1, "it is faster", content=plan(base)[5 - (seen.iterations_left or 0)])
    elif seen.phase in ("benchmarked", "failed"):
        loop.decide(name)
    else:
        step: Any = {"ready": loop.diagnose, "patched": loop.verify, "verified": loop.benchmark}[str(seen.phase)]
        step(name)


class SlowEvaluator(FakeEvaluator):
    """Holds the device long enough for somebody else to want it."""

    def evaluate(self, job: Job, watch: Watch) -> Evaluation:
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            os.sched_yield()
        return super().evaluate(job, watch)


def profile(**request: Any) -> Profile:
    return Profile(rung="ncu", why="", workload=request["workload"].name, kernels=[], metrics={"dram_pct": 40.0})


def benchmarks(root: Path, locks: Path, count: int) -> None:
    loop = Loop(
        root,
        evaluator=SlowEvaluator(),
        detect=lambda: [fakes.GPU],
        profile=profile,
        diagnose=fakes.diagnose,
        locks=Locks(locks, sleep=lambda seconds: os.sched_yield()),
    )
    name = loop.baseline("softmax.py", target_metric="gbps", target_value=1e9, max_iterations=count).experiment
    for number in range(count):
        loop.profile(name)
        loop.diagnose(name)
        loop.apply_patch(name, 1, "it is faster", content=fakes.kernel(1.1 ** (number + 1)))
        loop.verify(name)
        loop.benchmark(name)
        loop.decide(name)


def baseline(root: Path, locks: Path, ticks: int) -> None:
    loop = Loop(
        root,
        evaluator=LocalEvaluator(sys.executable, root.parent / "cache"),
        detect=lambda: [fakes.CPU],
        locks=Locks(locks),
        disk=WatchedDisk(lambda name: os.write(ticks, b".") and None),
    )
    watch = Watch(lambda fraction, text: os.write(ticks, b".") and None)
    loop.baseline("softmax.c", target_metric="gbps", target_value=1e6, watch=watch)
    os.write(ticks, b"e")


MODES: dict[str, Callable[..., None]] = {"experiments": experiments, "benchmarks": benchmarks, "baseline": baseline}

if __name__ == "__main__":
    mode, root, locks, *rest = sys.argv[1:]
    MODES[mode](Path(root), Path(locks), *map(int, rest))
