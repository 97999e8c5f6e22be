"""The process dies at calls that change a file, one after the other; the next process must be able to go on.

At every third of them, or at every one with KOPT_BOUNDARIES=all.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fakes
import pytest
from fakes import Project, WatchedDisk

from kopt_mcp.disk import digest
from kopt_mcp.errors import GuardRefused, JournalCorrupt, WorkspaceFailed
from kopt_mcp.journal import verify

PLAN = (fakes.kernel(9.0, VERIFY="INCORRECT_NUMERICAL"), fakes.kernel(1.005), fakes.kernel(6.0))
STATUSES = ["FAILED", "NEUTRAL", "TARGET_MET"]
STEP = 1 if os.environ.get("KOPT_BOUNDARIES") == "all" else 3


class Killed(BaseException):
    """Nothing may catch this, as nothing can catch kill -9."""


class MortalDisk(WatchedDisk):
    """Dies before its n-th call, or half way through it where it writes; once dead, it stays dead."""

    def __init__(
        self, last: int | None = None, error: Callable[[], BaseException] = Killed, once: bool = False
    ) -> None:
        super().__init__(self._live)
        self.calls: list[str] = []
        self._last = last
        self._error = error
        self._once = once

    def _live(self, name: str) -> None:
        self.calls.append(name)
        at = len(self.calls) - 1
        if self._last is not None and (at == self._last or (at > self._last and not self._once)):
            raise self._error()


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
    for last in range(0, total, STEP):
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
    for last in range(1, total, 2 * STEP):
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


# A disk that is full, or may not be written, at every step in turn: clear words, nothing lost, and on it goes.

STEPS = ("baseline", "diagnose", "patch", "verify", "benchmark", "decide")


def act(project: Project, step: str, name: str) -> str:
    if step == "baseline":
        return project.baseline(target_value=140).experiment
    if step == "patch":
        project.patch(name, PLAN[1].replace("1.005", "1.5"))
    else:
        getattr(project.loop, step)(name)
    return name


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")]
)
def test_a_disk_that_takes_nothing_is_named_and_the_step_can_be_called_again(
    tmp_path: Path, step: str, code: int, words: str
) -> None:
    broken = False

    def before(call: str) -> None:
        if broken:
            raise OSError(code, words)

    project = Project(tmp_path / "project", disk=WatchedDisk(before))
    name = ""
    for due in STEPS:
        if due != step:
            name = act(project, due, name)
            continue
        phase = project.loop.log(name).phase if name else None
        journals = {p: p.read_bytes() for p in project.root.glob("experiments/*/journal.jsonl")}
        broken = True
        with pytest.raises(WorkspaceFailed) as failed:
            act(project, due, name)
        broken = False
        assert (
            f" could not be written: {words}; it is as it was, and nothing is lost; make room or set the rights of "
            in (str(failed.value))
        )
        assert {p: p.read_bytes() for p in project.root.glob("experiments/*/journal.jsonl")} == journals
        assert not name or project.loop.log(name).phase == phase
        name = act(project, due, name)
    assert project.loop.log(name).phase == "done"


def test_a_clock_that_goes_back_disturbs_nothing(project: Project) -> None:
    seconds = iter(range(1_800_000_000, 0, -3600))
    project.loop = project.reopened(clock=lambda: float(next(seconds)))
    check_the_end(project, drive(project))


def test_a_kernel_file_that_became_a_folder_or_a_way_out_is_refused_in_words(project: Project) -> None:
    name = project.diagnosed()
    project.kernel.unlink()
    project.kernel.mkdir()
    with pytest.raises(WorkspaceFailed, match=r"softmax.py could not be written: Is a directory; it is as it was"):
        project.loop.profile(name)
    project.kernel.rmdir()
    outside = project.root.parent / "outside.py"
    outside.write_text("outside")
    project.kernel.symlink_to(outside)
    with pytest.raises(WorkspaceFailed, match=r"softmax.py now leads out of the project; put the file back"):
        project.loop.profile(name)
    assert outside.read_text() == "outside"
    project.kernel.unlink()
    assert project.loop.profile(name).recovered.startswith("softmax.py was missing")


def test_a_snapshot_that_is_gone_is_named(project: Project) -> None:
    name = project.diagnosed()
    snapshot = next((project.root / "experiments" / name / "candidates").iterdir())
    text = snapshot.read_text()
    snapshot.unlink()
    project.kernel.unlink()
    with pytest.raises(
        WorkspaceFailed, match=rf"{snapshot.name} cannot be read: No such file or directory; restore it"
    ):
        project.loop.profile(name)
    snapshot.write_text(text)
    assert project.loop.profile(name).recovered


def test_a_journal_with_a_corrupt_middle_is_refused_with_its_line_and_left_alone(project: Project) -> None:
    name = project.diagnosed()
    path = project.root / "experiments" / name / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"n":0', b'"n":7'))
    damaged = path.read_bytes()
    with pytest.raises(JournalCorrupt) as refused:
        project.loop.profile(name)
    assert str(refused.value) == (
        f"{name}/journal.jsonl line 1 does not verify: it is event 7 where 0 belongs; the journal was edited or the "
        "disk is damaged; restore it from version control or a backup, or start a new baseline (nothing is "
        "re-initialised)."
    )
    assert path.read_bytes() == damaged
    path.write_bytes(whole)
    assert project.loop.profile(name).phase == "profiled"
