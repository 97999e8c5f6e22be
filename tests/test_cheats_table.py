"""The pages about tricks say what the kept runs found, and nothing else."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments" / "cheats"))

import table


def row(name: str, **changed: Any) -> dict[str, Any]:
    return {
        "name": name, "expected": ["CHEATED"], "got": "CHEATED", "right": True, "ratio": None, "low": None, "known": "",
        "detail": "", "notes": [], "control": False, "what": "Does a | b", **changed,
    }  # fmt: skip


@pytest.mark.parametrize("page", table.PARTS, ids=lambda p: str(p.relative_to(table.ROOT)))
def test_a_page_equals_what_its_runs_found(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert table.rendered(text, table.PARTS[page]) == text, "run `python experiments/cheats/table.py`"


@pytest.mark.parametrize("run", table.FOLDERS)
def test_every_candidate_of_a_kept_run_says_what_it_did(run: str) -> None:
    about, rows = table.load(run)
    assert about
    assert {row["control"] for row in rows} == {True, False}
    assert all(row["what"] for row in rows)


@pytest.mark.parametrize("run", table.FOLDERS)
def test_no_kept_run_holds_a_wrong_verdict_that_is_not_known(run: str) -> None:
    assert [r["name"] for r in table.load(run)[1] if not r["right"] and not r["known"]] == []


def test_a_verdict_shows_the_speed_and_what_got_through() -> None:
    assert table.verdict(row("a")) == "CHEATED"
    assert table.verdict(row("a", got="PASSED", ratio=0.576)) == "PASSED at 0.58x"
    assert table.verdict(row("a", got="PASSED", ratio=1.2, low=1.0)) == "PASSED at 1.20x, 1.00x for sure"
    assert table.verdict(row("a", got="PASSED", right=False, known="why")) == "PASSED (known)"
    assert table.verdict(row("a", got="PASSED", right=False)) == "PASSED (**WRONG**)"


def test_each_candidate_is_counted_once() -> None:
    rows = [
        row("a"),
        row("b", got="PASSED"),
        row("c", got="PASSED", right=False, known="why"),
        row("d", got="PASSED", right=False),
        row("e"),
    ]
    assert table._counts("some", rows) == "| some | 5 | 2 | 1 | 1 | 1 |"


def test_a_run_is_kept_with_its_verdicts_its_versions_and_its_day(tmp_path: Path) -> None:
    found = {**row("zeros"), "seconds": 3.0, "environment": {"torch": "2.99"}, "workloads": [{"much": "text"}]}
    del found["control"], found["what"]
    (tmp_path / "found.json").write_text(json.dumps([found]))
    table.take(tmp_path / "found.json", "cpu", "a CPU", datetime.date(2026, 1, 2), tmp_path)
    about, (kept,) = table.load("cpu", tmp_path)
    assert about == "a CPU, torch 2.99, 2026-01-02"
    assert (kept["name"], kept["control"], "workloads" in kept) == ("zeros", False, False)
    assert kept["what"].startswith("Zeros for everything")


def test_a_bar_in_what_a_candidate_does_breaks_no_table() -> None:
    assert table.table([row("a")]).endswith("| `a` | Does a \\| b | CHEATED |")


def test_a_page_without_its_marker_is_an_error() -> None:
    with pytest.raises(ValueError, match="no marker <!-- generated: cheats -->"):
        table.rendered("# A page\n", {"cheats": lambda: "x"})
