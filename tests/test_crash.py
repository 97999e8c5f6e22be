"""The process dies at every call that changes a file, one after the other; the next process must be able to go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import Project

from kopt_mcp.disk import Disk, digest
from kopt_mcp.errors import GuardRefused, WorkspaceFailed
from kopt_mcp.journal import verify

PLAN = (fakes.kernel(9.0, VERIFY="INCORRECT_NUMERICAL"), fakes.kernel(1.005), fakes.kernel(6.0))
STATUSES = ["FAILED", "NEUTRAL", "TARGET_MET"]


class Killed(BaseException):
    """Nothing may catch this, as nothing can catch kill -9."""


class MortalDisk(Disk):
    """Dies before its n-th call, or half way through it where it writes; once dead, it stays dead."""

    def __init__(
        self, last: int | None = None, error: Callable[[], BaseException] = Killed, once: bool = False
    ) -> None:
        self.calls: list[str] = []
        self._last = last
        self._error = error
        self._once = once

    def _live(self, name: str) -> None:
        self.calls.append(name)
        at = len(self.calls) - 1
        if self._last is not None and (at == self._last or (at > self._last and not self._once)):
            raise self._error()

    def _write(self, fd: int, data: bytes) -> None:
        self._live("write")
        super()._write(fd, data[: len(data) // 2])
        self._live("write the second half")
        super()._write(fd, data[len(data) // 2 :])

    def _sync(self, fd: int) -> None:
        self._live("sync")

    def _sync_folder(self, path: Path) -> None:
        self._live("sync folder")

    def _truncate(self, fd: int, size: int) -> None:
        self._live("truncate")
        super()._truncate(fd, size)

    def _chmod(self, fd: int, mode: int) -> None:
        self._live("chmod")
        super()._chmod(fd, mode)

    def _rename(self, source: Path, target: Path) -> None:
        self._live("rename")
        super()._rename(source, target)

    def _mkdir(self, path: Path) -> None:
        self._live("mkdir")
        super()._mkdir(path)

    def _remove(self, path: Path) -> None:
        self._live("remove")
        super()._remove(path)


def drive(project: Project) -> str:
    """Carry the experiment of the project on to its end, from wherever it stands."""
    names = [line.experiment for line in project.loop.log().experiments]
    name = names[0] if names else project.baseline().experiment
    while (seen := project.loop.log(name)).phase != "done":
        if seen.phase == "diagnosed":
            done = 5 - (seen.iterations_left or 0)
            project.patch(name, PLAN[done])
        elif seen.phase in ("benchmarked", "failed"):
            project.loop.decide(name)
        else:
            step: Any = {"ready": "diagnose", "patched": "verify", "verified": "benchmark"}[str(seen.phase)]
            getattr(project.loop, step)(name)
    return name


def statuses(project: Project, name: str) -> list[str]:
    rows = project.loop.log(name).table.splitlines()[3:-1]
    return [row.split("|")[-2].split(",")[0].strip() for row in rows]


def count_calls(tmp_path: Path) -> int:
    project = Project(tmp_path / "whole" / "project", disk=MortalDisk())
    drive(project)
    return len(project.disk.calls)  # type: ignore[attr-defined]


def test_killed_at_any_boundary_the_next_process_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    total = count_calls(tmp_path)
    assert total > 100
    for last in range(total):
        project = Project(tmp_path / str(last) / "project", disk=MortalDisk(last))
        with pytest.raises(Killed):
            drive(project)
        assert digest(project.kernel.read_bytes()) in known_versions(project)
        project.disk = MortalDisk()
        project.loop = project.reopened()
        name = drive(project)
        check_the_end(project, name)


def test_a_disk_that_fails_at_any_boundary_loses_nothing(tmp_path: Path) -> None:
    total = count_calls(tmp_path)
    for last in range(0, total, 4):
        broken = MortalDisk(last, error=lambda: OSError(28, "No space left on device"), once=True)
        project = Project(tmp_path / str(last) / "project", disk=broken)
        with suppress(WorkspaceFailed):  # not raised where only the log could not be written
            drive(project)
        check_the_end(project, drive(project))


def known_versions(project: Project) -> set[str]:
    return {digest(text.encode()) for text in (fakes.kernel(), *PLAN)}


def check_the_end(project: Project, name: str) -> None:
    with pytest.raises(GuardRefused):
        project.loop.decide(name)  # brings the log up to date where the last step died before it could
    assert statuses(project, name) == STATUSES
    assert project.text == PLAN[-1]
    assert "3 iterations, target met." in (project.root / "experiments" / "README.md").read_text()
    assert verify(project.root / "experiments" / name / "journal.jsonl") > 0
    strays = [p for p in project.root.rglob("*.kopt-new")]
    assert len(strays) <= 1
    assert [p.name for p in (project.root / "experiments").iterdir() if p.is_dir()] == [name]


def test_a_patch_that_was_journalled_but_not_written_is_completed_and_the_agent_is_told(project: Project) -> None:
    name = project.diagnosed()
    before = project.text
    project.patch(name, PLAN[1])
    project.kernel.write_text(before)  # as if the rename had never happened
    result = project.reopened().verify(name)
    assert project.text == PLAN[1]
    assert result.correct
    assert result.recovered.startswith("softmax.py was at version ")
    assert result.recovered.endswith("which the journal names, is restored.")


def test_a_deleted_kernel_file_is_restored_and_the_agent_is_told(project: Project) -> None:
    name = project.diagnosed()
    before = project.text
    project.kernel.unlink()
    with pytest.raises(GuardRefused):
        project.loop.verify(name)
    assert project.text == before
