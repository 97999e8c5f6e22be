"""`kopt-mcp log --verify`: what an edit after the fact looks like."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fakes import Project

from kopt_mcp.__main__ import main
from kopt_mcp.integrity import audit

ROOT = Path(__file__).resolve().parents[1]
NAME = "softmax-h200-1"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "experiments" / NAME, tmp_path / "experiments" / NAME)
    return tmp_path


def test_every_journal_in_this_repository_replays_and_its_kernels_match() -> None:
    found = audit(ROOT)
    assert {NAME, "softmax-h200-2"} <= {one.experiment for one in found}
    assert [one.text for one in found if not one.sound] == []


def test_a_number_edited_in_the_journal_is_found_with_its_line(project: Path) -> None:
    journal = project / "experiments" / NAME / "journal.jsonl"
    text = journal.read_text(encoding="utf-8")
    journal.write_text(text.replace('"status":"PASSED"', '"status": "PASSED"', 1), encoding="utf-8")
    (found,) = audit(project)
    assert (found.sound, "line 2 does not verify" in found.text) == (False, True)


def test_a_stored_kernel_that_was_edited_is_found(project: Path) -> None:
    kernel = next((project / "experiments" / NAME / "candidates").glob("*.py"))
    kernel.write_text(kernel.read_text(encoding="utf-8") + "# faster\n", encoding="utf-8")
    (found,) = audit(project)
    assert (found.sound, kernel.name in found.text) == (False, True)


def test_a_stored_problem_that_was_edited_is_found(tmp_path: Path) -> None:
    begun = Project(tmp_path / "project")
    name = begun.baseline().experiment
    (copy,) = (begun.root / "experiments" / name / "problem").iterdir()
    assert copy.read_text() == (begun.root / "test_softmax.py").read_text()
    assert [one.sound for one in audit(begun.root)] == [True]
    copy.write_text("# an easier problem\n")
    (found,) = audit(begun.root)
    assert (found.sound, f"problem/{copy.name}" in found.text) == (False, True)


def test_the_command_fails_if_one_experiment_does(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(project), "log", "--verify"]) == 0
    assert f"{NAME}: ok: " in capsys.readouterr().out
    (project / "experiments" / NAME / "journal.jsonl").write_bytes(b"{}\n")
    assert main(["--root", str(project), "log", "--verify"]) == 1
    assert f"{NAME}: NOT SOUND: " in capsys.readouterr().out


def test_an_experiment_that_is_not_there_is_said_to_be_missing_beside_those_that_are(project: Path) -> None:
    (found,) = audit(project, "softmax-h100-9")
    assert (found.sound, NAME in found.text) == (False, True)
