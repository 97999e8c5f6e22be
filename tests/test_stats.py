"""Quantiles, intervals and the rule that accepts a change."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt_mcp.stats import (
    UNKNOWN_HIGH,
    aa_floor,
    bootstrap_interval,
    geometric_mean,
    least_gain,
    median,
    most_floor,
    quantile,
    student,
    verdict,
)

TIMES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=50)


def test_quantiles_interpolate_between_neighbours() -> None:
    assert quantile([1, 2, 3, 4], 0.5) == 2.5
    assert quantile([4, 1], 0.25) == 1.75
    assert median([7]) == 7


@pytest.mark.parametrize(("values", "q"), [([], 0.5), ([1.0], 1.5), ([1.0], math.nan)])
def test_a_quantile_of_nothing_or_outside_is_an_error(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        quantile(values, q)


@given(TIMES, st.floats(0, 1))
def test_a_quantile_lies_among_its_values(values: list[float], q: float) -> None:
    assert min(values) * (1 - 1e-12) <= quantile(values, q) <= max(values) * (1 + 1e-12)


def test_the_geometric_mean_does_not_favour_large_workloads() -> None:
    assert geometric_mean([1, 100]) == pytest.approx(10)
    with pytest.raises(ValueError, match="above zero"):
        geometric_mean([1, 0])


@given(TIMES)
def test_the_interval_holds_the_median_and_is_the_same_each_time(ratios: list[float]) -> None:
    value, low, high = bootstrap_interval(ratios, resamples=50)
    assert low <= value * (1 + 1e-12)
    assert value <= high * (1 + 1e-12)
    assert (value, low, high) == bootstrap_interval(ratios, resamples=50)


def test_one_block_tells_nothing() -> None:
    assert bootstrap_interval([1.5]) == (1.5, 0.0, UNKNOWN_HIGH)
    assert verdict(0.0, UNKNOWN_HIGH, 0.0)[0] == "same"


def test_more_blocks_narrow_the_interval() -> None:
    draw = random.Random(1)
    ratios = [draw.gauss(1.05, 0.02) for _ in range(200)]
    few, many = bootstrap_interval(ratios[:10]), bootstrap_interval(ratios)
    assert many[2] - many[1] < few[2] - few[1]
    assert many[1] > 1.03


def test_the_floor_of_one_workload_is_its_difference_from_itself() -> None:
    assert aa_floor([1.03]) == pytest.approx(0.03)
    assert aa_floor([1 / 1.03]) == pytest.approx(0.03)
    assert aa_floor([]) == 0
    for ratios in ([1.05, *[1.0] * 7], [0.9, 1.1, 1.0], [1.02] * 4, [1 / 1.3]):
        assert max(aa_floor([r]) for r in ratios) <= most_floor(aa_floor(ratios), len(ratios)) * (1 + 1e-9)


def test_the_floor_of_a_mean_shrinks_with_the_number_of_its_workloads() -> None:
    assert aa_floor([1.04, 1.0, 1.0, 1.0]) == pytest.approx(0.01, rel=0.02)
    assert aa_floor([1.01, 0.99, 1.01, 0.99]) == pytest.approx(0.005, rel=0.02)


def test_the_floor_is_at_least_what_the_mean_itself_was_off() -> None:
    assert aa_floor([1.01, 1.01, 1.01, 1.01]) == pytest.approx(0.01)


def test_one_short_workload_does_not_hide_a_gain_of_the_whole() -> None:
    # Softmax on an H200: 128x1024 takes 3 us and was 3.8 % off against itself, the other five by less than 0.2 %.
    floor = aa_floor([1.038, 1.001, 0.999, 1.002, 1.0, 0.999])
    assert verdict(1.045, 1.08, floor)[0] == "better"
    slower = {"128x1024": (0.94, 0.98)}
    assert verdict(1.045, 1.08, floor, slower, {"128x1024": 0.038})[0] == "better"
    assert verdict(1.045, 1.08, floor, slower, {"128x1024": 0.001})[0] == "worse"


def test_the_bar_is_one_percent_or_twice_the_floor() -> None:
    assert least_gain(0.001) == 0.01
    assert least_gain(0.02) == 0.04


@pytest.mark.parametrize(
    ("low", "high", "floor", "expected"),
    [
        (1.02, 1.04, 0.001, "better"),
        (1.005, 1.04, 0.001, "same"),  # the lower end does not clear 1 %
        (1.02, 1.04, 0.02, "same"),  # nor 4 % on a noisy machine
        (1.05, 1.06, 0.02, "better"),
        (0.95, 0.97, 0.001, "worse"),
        (0.95, 1.02, 0.001, "same"),
        (0.995, 0.999, 0.0, "same"),  # slower, but by less than the bar
    ],
)
def test_a_change_is_judged_by_its_whole_interval(low: float, high: float, floor: float, expected: str) -> None:
    assert verdict(low, high, floor)[0] == expected


def test_one_workload_that_gets_slower_outweighs_the_gain_of_the_others() -> None:
    found, why = verdict(1.2, 1.3, 0.0, {"large": (1.5, 1.6), "small": (0.8, 0.9)})
    assert found == "worse"
    assert why == "workload 'small' got slower, at best -10.0%, whatever the others gained"


@given(st.floats(0, 0.02), st.integers(0, 1000))
def test_a_kernel_timed_against_itself_is_never_better_on_a_quiet_machine(floor: float, seed: int) -> None:
    draw = random.Random(seed)
    ratios = [draw.gauss(1.0, 0.004) for _ in range(40)]
    _, low, high = bootstrap_interval(ratios, resamples=200)
    assert verdict(low, high, floor)[0] == "same"


@pytest.mark.parametrize(
    ("level", "freedom", "t"),
    [(0.95, 2, 4.303), (0.95, 4, 2.776), (0.95, 15, 2.131), (0.99, 2, 9.925), (0.99, 7, 3.499)],
)
def test_students_t_is_that_of_the_tables(level: float, freedom: int, t: float) -> None:
    assert student(level, freedom) == pytest.approx(t, rel=0.05)
    assert student(level, freedom) <= t * 1.001


def test_three_blocks_on_one_side_are_luck_where_they_are_far_apart() -> None:
    assert bootstrap_interval([1.17, 1.38, 1.5], level=0.99)[1] < 1.0
    assert bootstrap_interval([1.36, 1.38, 1.39], level=0.99)[1] > 1.2
    assert bootstrap_interval([15.0, 20.0, 31.0], level=0.99)[1] > 1.0


def test_a_kernel_timed_against_itself_on_a_busy_machine_is_seldom_better_or_worse() -> None:
    found = []
    for seed in range(200):
        draw = random.Random(seed)
        ratios = [math.exp(draw.gauss(0.0, 0.3)) for _ in range(5)]
        found.append(verdict(*bootstrap_interval(ratios, resamples=100)[1:], 0.01)[0])
    assert found.count("better") + found.count("worse") <= 10, "of five blocks the least and the greatest leave out 6 %"


def test_the_module_needs_nothing_but_the_standard_library() -> None:
    code = "import sys; sys.modules['pydantic'] = None; import kopt_mcp.stats as s; print(s.median([1, 2, 3]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2.0"
