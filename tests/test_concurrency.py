"""Two server-side processes and one device: their times on it, as their journals have them, never overlap."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

from driver import DRIVER, environment
from fakes import Project

from kopt_mcp.journal import Journal

COUNT = 20


def held(journal: Path) -> list[tuple[float, float, str]]:
    """When a journal says that the device was held, and for what."""
    found = []
    for event in Journal(journal).read():
        intervals = [event.data.get("held"), *(c["held"] for c in event.data.get("confirmations", ()))]
        found += [(*interval, event.tool) for interval in intervals if interval]
    return found


def test_two_processes_that_benchmark_on_one_device_take_turns(tmp_path: Path) -> None:
    projects = [Project(tmp_path / name / "project") for name in ("one", "two")]
    locks = tmp_path / "locks"
    locks.mkdir()
    command = [sys.executable, str(DRIVER), "benchmarks"]
    running = [subprocess.Popen([*command, str(p.root), str(locks), str(COUNT)], env=environment()) for p in projects]
    assert [process.wait() for process in running] == [0, 0]
    per_process = [held(journal) for p in projects for journal in p.root.glob("experiments/*/journal.jsonl")]
    assert [sum(tool == "benchmark" for _, _, tool in one) for one in per_process] == [COUNT, COUNT]
    assert [sum(tool == "profile" for _, _, tool in one) for one in per_process] == [COUNT, COUNT]
    everything = sorted(interval for one in per_process for interval in one)
    assert all(begun <= ended for begun, ended, _ in everything)
    overlaps = [pair for pair in itertools.pairwise(everything) if pair[0][1] > pair[1][0]]
    assert overlaps == []
    owners = [one is per_process[0] for begun, *_ in everything for one in per_process if begun in {b for b, *_ in one}]
    assert len(list(itertools.groupby(owners))) > 2, "they never met: nothing was shown"
