"""What the comparison of clocks concludes from its rows, on rows whose truth is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments" / "precision"))

import calibration

PER_STEP, FIXED = 0.002, 1.5


def row(steps: int, twin_of: int, over: dict[str, float]) -> dict[str, Any]:
    """A chain that takes what it takes, and clocks that add a constant or a share to it."""
    own = FIXED + PER_STEP * steps
    times = {f"{m}_{r}": own + over.get(m, 0.0) for m in calibration.METHODS for r in ("cold", "warm")}
    return {"steps": steps, "twin_of": twin_of, "own_us": own, **times}


def found(**over: float) -> dict[str, Any]:
    costs = [(s, c) for s in calibration.STEPS for c in dict.fromkeys((s, round(s * calibration.GAIN)))]
    chains = [row(cost, steps, over) for steps, cost in costs]
    copies = [{"bytes": 1 << 20, **{k: 2.0 for k in chains[0] if k.endswith(("cold", "warm"))}}]
    about = {"device": "a GPU", "torch": "2", "cuda": "13", "date": "today", "empty_us": 1.0, "bytes_per_us": 1e6}
    return {"about": about, "chains": chains, "copies": copies}


def test_a_clock_that_adds_a_constant_has_the_true_slope_and_the_constant() -> None:
    told = {v["method"]: v for v in calibration.verdicts(found(events=0.9))}
    assert told["events"]["slope"] == pytest.approx(1.0)
    assert told["events"]["over_cupti_us"] == pytest.approx(0.9)
    assert told["events"]["spread_us"] == pytest.approx(0.0)
    assert told["cupti"]["over_cupti_us"] == pytest.approx(0.0)


def test_a_clock_that_sees_half_of_each_step_is_told_by_its_slope() -> None:
    rows = found()
    for one in rows["chains"]:
        one["graph_cold"] = FIXED + PER_STEP * one["steps"] / 2
    told = {v["method"]: v for v in calibration.verdicts(rows)}
    assert told["graph"]["slope"] == pytest.approx(0.5)


def test_of_a_short_kernels_relative_gain_a_constant_hides_its_share() -> None:
    shortest = next(row for row in calibration.gains(found(events=2.0)) if row["own"] > 1)
    assert shortest["cupti"] == pytest.approx(shortest["own"])
    assert shortest["events"] == pytest.approx(shortest["own"] * shortest["us"] / (shortest["us"] + 2.0))
    longest = calibration.gains(found(events=2.0))[-1]
    assert longest["events"] > 0.9 * longest["own"]


def test_the_page_has_a_line_for_each_chain_copy_and_clock() -> None:
    text = calibration.page(found(events=0.9))
    twins = len(calibration.STEPS) - 1
    assert text.count("\n| ") == 2 * 4 + len(calibration.STEPS) + 1 + len(calibration.METHODS) + twins
    assert "| events | 1.000 | 0.90 | 0.00 |" in text
