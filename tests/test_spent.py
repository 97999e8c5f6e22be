"""Where the seconds go."""

import pytest

from kopt_mcp.evaluator.spent import Spent


def test_parts_add_up_and_the_longest_comes_first() -> None:
    spent = Spent()
    for part, seconds in (("load", 0.25), ("calls", 1.0), ("load", 0.5)):
        spent.add(part, seconds)
    assert list(spent.rounded().items()) == [("calls", 1.0), ("load", 0.75)]


def test_a_part_that_fails_has_taken_its_time_too() -> None:
    spent = Spent()
    with pytest.raises(ValueError, match="no"), spent.on("calls"):
        raise ValueError("no")
    assert spent.rounded()["calls"] >= 0
