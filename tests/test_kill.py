"""Real server-side processes, killed with SIGKILL at random points: nothing acknowledged is lost, nothing left behind.

KOPT_KILL_POINTS says how often; KOPT_KILL_SEED which random points.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from driver import DRIVER, advance, environment
from fakes import Project

from kopt_mcp.errors import GuardRefused
from kopt_mcp.journal import verify

POINTS = int(os.environ.get("KOPT_KILL_POINTS", "15"))
SEED = int(os.environ.get("KOPT_KILL_SEED", "0"))
LONGEST = 170
"""Changes of files in one life; an experiment takes about 150."""
EXAMPLE = DRIVER.parent.parent / "examples" / "cpu_softmax"


@dataclass
class Victim:
    """A project, and the processes that work on it one after the other."""

    project: Project
    journals: dict[str, bytes] = field(default_factory=dict)
    """What each journal held when the last process had been buried."""

    def live(self, ticks: int) -> dict[str, int]:
        """Let a process change files `ticks` times, kill it; returns the length of each journal that it vouched for."""
        tick, tick_end = os.pipe()
        alive, alive_end = os.pipe()
        command = [sys.executable, str(DRIVER), "experiments", str(self.project.root), str(self.locks)]
        process = subprocess.Popen(
            [*command, str(tick_end), str(alive_end)],
            stdout=subprocess.PIPE,
            pass_fds=[tick_end, alive_end],
            env=environment(),
        )
        os.close(tick_end)
        os.close(alive_end)
        seen = 0
        while seen < ticks and (data := os.read(tick, ticks - seen)):
            seen += len(data)
        os.kill(process.pid, signal.SIGKILL)
        said = process.communicate()[0].decode().splitlines()
        assert process.returncode == -signal.SIGKILL, "the driver ended by itself"
        assert seen == ticks
        ended, _, _ = select.select([alive], [], [], 30)
        assert ended, "a process outlived its server"
        assert os.read(alive, 1) == b""
        os.close(tick)
        os.close(alive)
        return {name: int(size) for name, size in (line.split() for line in said)}

    @property
    def locks(self) -> Path:
        return self.project.root.parent / "locks"

    def check(self, vouched: dict[str, int]) -> None:
        """What a dead process must leave."""
        for lock in [*self.locks.glob("*.lock"), *self.project.root.rglob(".lock")]:
            with lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where somebody still holds it
        for path in sorted(self.project.root.glob("experiments/*/journal.jsonl")):
            data = path.read_bytes()
            name = path.parent.name
            assert data.startswith(self.journals.get(name, b"")), "an event that was there is gone"
            assert data.rfind(b"\n") + 1 >= vouched.get(name, 0), "an event that was acknowledged is gone"
            verify(path)

    def recover(self) -> None:
        """The next server, at its first call, whatever it is."""
        self.project.loop = self.project.reopened()
        newest = [line for line in self.project.loop.log().experiments if line.phase != "done"]
        for line in newest:
            illegal = next(
                tool for tool in ("verify", "diagnose") if tool not in self.project.loop.log(line.experiment).next
            )
            with pytest.raises(GuardRefused):
                getattr(self.project.loop, illegal)(line.experiment)
            assert self.project.loop.log(line.experiment).on_disk.endswith("as it should be")
        for path in self.project.root.glob("experiments/*/journal.jsonl"):
            data = path.read_bytes()
            self.journals[path.parent.name] = data[: data.rfind(b"\n") + 1]

    def finish(self) -> None:
        """Carry the last experiment on to its end, as if nothing had happened."""
        for line in self.project.loop.log().experiments:
            while (seen := self.project.loop.log(line.experiment)).phase != "done":
                advance(self.project.loop, seen)
            statuses = [row.split("|")[-2].split(",")[0].strip() for row in seen.table.splitlines()[3:-1]]
            assert statuses == ["FAILED", "NEUTRAL", "TARGET_MET"]


def test_killed_at_random_points_nothing_is_lost_and_the_next_process_goes_on(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    victim = Victim(Project(tmp_path / "0" / "project"))
    for point in range(POINTS):
        if point % 4 == 3:  # speeds grow by six an experiment; start anew before no time is left to be measured
            victim.finish()
            victim = Victim(Project(tmp_path / str(point) / "project"))
        victim.check(victim.live(draw.randrange(1, LONGEST)))
        victim.recover()
    victim.finish()


def marked(mark: str) -> list[int]:
    """Living processes that carry a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def buried(pid: int) -> bool:
    """Whether a process ends within a minute."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([handle], [], [], 60)
    os.close(handle)
    return bool(ended)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", range(max(1, POINTS // 5)))
def test_the_real_evaluators_processes_die_with_their_server(tmp_path: Path, number: int) -> None:
    root, locks = tmp_path / "project", tmp_path / "locks"
    shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns("patches", "__pycache__"))
    locks.mkdir()
    draw = random.Random(f"{SEED}-{number}")
    tick, tick_end = os.pipe()
    mark = f"KOPT_TEST_MARK={tmp_path}"
    process = subprocess.Popen(
        [sys.executable, str(DRIVER), "baseline", str(root), str(locks), str(tick_end)],
        pass_fds=[tick_end],
        env={**environment(), "OMP_NUM_THREADS": "1", "KOPT_TEST_MARK": str(tmp_path)},
    )
    os.close(tick_end)
    seen, wanted = b"", draw.randrange(3, 30)
    while len(seen) < wanted and not seen.endswith(b"e") and (data := os.read(tick, 1)):
        seen += data
    os.kill(process.pid, signal.SIGKILL)
    os.close(tick)
    assert process.wait() == -signal.SIGKILL or seen.endswith(b"e"), "the driver failed by itself"
    assert [pid for pid in marked(mark) if not buried(pid)] == []
    for lock in locks.glob("*.lock"):
        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for path in root.glob("experiments/*/journal.jsonl"):
        verify(path)
    assert (root / "softmax.c").read_bytes() == (EXAMPLE / "softmax.c").read_bytes()
