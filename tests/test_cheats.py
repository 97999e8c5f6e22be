"""Everything that has been tried to fool an evaluator, and honest kernels that have been taken for cheats.

Also a script: `python tests/test_cheats.py RESULTS.json [NAME ...]` prints a table and writes what it found.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the script

import pytest
from evaluating import (
    CHEATS,
    FALSE_SPEED,
    Case,
    case,
    left_behind,
    ready,
    run_all,
    running_evaluator,
    still_works,
    verdict,
)

from kopt_mcp.evaluator.client import LocalEvaluator


def _all(folder: Path) -> list[Case]:
    """Those of one problem side by side: each problem has a harness of its own."""
    cases = [case(p) for p in folder.glob("*.*") if p.suffix in (".py", ".c", ".cpp")]
    return sorted(cases, key=lambda c: (c.problem, c.name))


CASES = _all(CHEATS)
CONTROLS = _all(CHEATS / "controls")


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    with running_evaluator() as local:
        yield local


@pytest.mark.parametrize("cheat", CASES, ids=lambda c: c.name)
def test_a_cheat_gets_neither_a_false_pass_nor_a_false_speed(evaluator: LocalEvaluator, cheat: Case) -> None:
    ready(evaluator, cheat.problem)
    before = left_behind()
    result = verdict(evaluator, cheat)
    assert result.status in cheat.expected, result.detail
    if result.ratio is not None:
        assert result.ratio.low < FALSE_SPEED, result
    assert left_behind() == before
    assert still_works(evaluator, cheat.problem)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: c.name)
def test_an_honest_kernel_passes(evaluator: LocalEvaluator, control: Case) -> None:
    ready(evaluator, control.problem)
    before = left_behind()
    result = verdict(evaluator, control)
    assert result.status == "PASSED", result.detail
    assert not [note for note in result.notes if "left" in note or "by itself" in note]
    assert not control.faster or (result.ratio is not None and result.ratio.low > FALSE_SPEED)
    assert left_behind() == before


def test_every_cheat_says_what_it_is_and_what_is_expected_of_it() -> None:
    for path in (c.path for c in CASES):
        text = path.read_text(encoding="utf-8")
        assert text.startswith(('"""', "// ")), path.name
        assert "EXPECTED = (" in text, path.name


def main(target: str, names: list[str]) -> int:
    """Run all, or those that are named."""
    with running_evaluator() as local:
        return run_all([*CONTROLS, *CASES], lambda trick: verdict(local, trick), Path(target), names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
