"""How long each tool takes of its own, on an experiment with a journal of 10,000 events.

The evaluator, the profiler and the diagnosis are fakes that answer at once, so that what is left is reading, checking,
deciding and writing: replay, guards, the reading of the patch, the journal with its fsync, the log. Run from the
repository's root:

    python experiments/overhead/journal.py [EVENTS]

Prints a table, and writes it to journal.md beside this file.
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "tests"), str(HERE.parent.parent)]

from driver import profile  # noqa: E402
from fakes import Project, WatchedDisk  # noqa: E402

from kopt_mcp.disk import Disk  # noqa: E402
from kopt_mcp.errors import GuardRefused  # noqa: E402
from kopt_mcp.journal import Journal  # noqa: E402
from kopt_mcp.loop import Loop  # noqa: E402

MEASURED = 15
ITERATIONS = 1000 - MEASURED
KERNEL = (HERE.parent.parent / "tests" / "data" / "changes" / "softmax.py").read_text(encoding="utf-8")


def version(number: int) -> str:
    """A Triton kernel as it may come after `number` iterations, 1.1 % faster each time."""
    return f"SPEED = {1.011**number!r}\n" + KERNEL.replace("num_warps=4", f"num_warps={number + 1}")


def iterate(loop: Loop, name: str, number: int, timed: Callable[[str, Callable[[], object]], object]) -> None:
    """One iteration, every call handed to `timed`."""
    timed("profile", lambda: loop.profile(name))
    timed("diagnose", lambda: loop.diagnose(name))
    timed("apply_patch", lambda: loop.apply_patch(name, 1, f"more warps, {number}", content=version(number)))
    timed("verify", lambda: loop.verify(name))
    timed("benchmark", lambda: loop.benchmark(name))
    timed("decide", lambda: loop.decide(name))


def refused(loop: Loop, name: str) -> None:
    """A call out of order, which is journalled too."""
    try:
        loop.benchmark(name)
    except GuardRefused:
        return
    raise AssertionError("a benchmark without a patch was not refused")


def grown(project: Project, events: int) -> str:
    """An experiment whose journal holds about `events` events, most of them of iterations."""
    project.disk = WatchedDisk(lambda call: None)  # without fsync: this part is not measured
    project.kernel.write_text(version(0))
    loop = project.reopened(profile=profile, disk=project.disk)
    name = loop.baseline("softmax.py", target_metric="gbps", target_value=1e12, max_iterations=1000).experiment
    for number in range(1, min(ITERATIONS, events // 8) + 1):
        iterate(loop, name, number, lambda tool, call: call())
    while len(Journal(project.root / "experiments" / name / "journal.jsonl").read()) < events - 200:
        for _ in range(200):
            refused(loop, name)
    return name


def measured(project: Project, name: str) -> dict[str, list[float]]:
    """Milliseconds of every call, by tool; `first call` is that of a server that has just started."""
    loop = project.reopened(profile=profile, disk=Disk())
    times: dict[str, list[float]] = {}

    def timed(tool: str, call: Callable[[], object]) -> object:
        begun = time.perf_counter()
        answer = call()
        times.setdefault(tool, []).append(1e3 * (time.perf_counter() - begun))
        return answer

    timed("first call", lambda: loop.log(name))
    done = len(loop.log(name).table.splitlines()) and 1000 - (loop.log(name).iterations_left or 0)
    for number in range(done + 1, done + MEASURED):
        iterate(loop, name, number, timed)
        timed("log (one experiment)", lambda: loop.log(name))
        timed("log (all)", lambda: loop.log())
        timed("log (query)", lambda: loop.log(query="warps 7"))
        timed("refusal", lambda: refused(loop, name))
        timed("detect_gpu", loop.detect_gpu)
    for _ in range(3):
        timed("baseline", lambda: loop.baseline("softmax.py", target_metric="gbps", target_value=1e12))
    return times


def table(times: dict[str, list[float]]) -> str:
    """The times in Markdown."""
    lines = ["| call | median ms | longest ms | calls |", "|---|---|---|---|"]
    for tool, values in times.items():
        lines.append(f"| {tool} | {statistics.median(values):.1f} | {max(values):.1f} | {len(values)} |")
    return "\n".join(lines)


def main(events: int) -> None:
    """Measure, print, write."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder) / "project")
        name = grown(project, events)
        journal = project.root / "experiments" / name / "journal.jsonl"
        count, size = len(Journal(journal).read()), journal.stat().st_size
        text = table(measured(project, name))
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    head = (
        "# What the loop itself costs\n\n"
        f"Measured {today} on a machine without a GPU ({platform.machine()}, Python {platform.python_version()}), with "
        f"`python experiments/overhead/journal.py`: one experiment of {count:,} events ({size / 1e6:.1f} MB), its "
        "evaluator, profiler and diagnosis fakes that answer at once, every journal line written with fsync. `first "
        "call` is that of a server that has just started: it reads and verifies the whole journal.\n\n"
    )
    print(text)
    (HERE / "journal.md").write_text(head + text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
