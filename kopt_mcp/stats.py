"""Quantiles, the bootstrap interval of a ratio, the noise floor, and the rule that accepts a change. Pure.

Standard library only, and nothing of ours: the harness uses this module under the user's own interpreter.
A ratio is incumbent time / candidate time, so that above 1 the candidate is faster.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal

LEAST_GAIN = 0.01
"""A gain below 1 % is never accepted, however quiet the machine: clocks and layout alone move a kernel by that much."""

UNKNOWN_HIGH = 1e9
"""Upper end of an interval that is not known; finite, so that it survives every JSON."""

Verdict = Literal["better", "same", "worse"]


def quantile(values: Sequence[float], q: float) -> float:
    """The `q` quantile (0 to 1) with linear interpolation between the two nearest values.

    Raises:
        ValueError: there are no values, or `q` is not within 0 and 1.
    """
    if not values or not 0 <= q <= 1:
        raise ValueError(f"no quantile {q} of {len(values)} values")
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return quantile(values, 0.5)


def median_error(values: Sequence[float]) -> float:
    """Standard error of the median, from the median absolute deviation: 1.2533 and 1.4826 for a normal distribution."""
    middle = median(values)
    return 1.2533 * 1.4826 * median([abs(v - middle) for v in values]) / math.sqrt(len(values))


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product.

    Raises:
        ValueError: there are no values, or one is not above zero.
    """
    if not values or min(values) <= 0:
        raise ValueError("a geometric mean needs at least one value, and all of them above zero")
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def bootstrap_interval(
    ratios: Sequence[float], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """The median of block ratios with its percentile bootstrap interval: (value, low, high).

    Blocks, not single samples, are resampled: samples within a block share the clock and the temperature of their
    moment. Of few blocks it is no narrower than Student's interval with the error of the median: that three of them lie
    on one side of 1, in the same order of size, is luck in one case of four. The same ratios and seed give the same
    interval. One block alone tells nothing: (value, 0, `UNKNOWN_HIGH`).

    Raises:
        ValueError: there are no ratios.
    """
    value = median(ratios)
    if len(ratios) == 1:
        return value, 0.0, UNKNOWN_HIGH
    draw = random.Random(seed)
    medians = [median(draw.choices(ratios, k=len(ratios))) for _ in range(resamples)]
    tail = (1 - level) / 2
    factor = math.exp(min(student(level, len(ratios) - 1) * median_error([math.log(r) for r in ratios]), 50.0))
    return value, min(quantile(medians, tail), value / factor), max(quantile(medians, 1 - tail), value * factor)


def student(level: float, freedom: int) -> float:
    """Student's t: how many standard errors a two-sided interval reaches, by Abramowitz and Stegun, 26.7.5.

    It is up to 4 % too small for 2 degrees of freedom at 99 %, and less for all others above 1.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def widen(value: float, low: float, high: float, half_width: float) -> tuple[float, float]:
    """An interval around a ratio, made wider by another, independent relative half-width (on the logarithmic scale)."""
    down = math.hypot(math.log(value / low) if low > 0 else math.inf, half_width)
    up = math.hypot(math.log(high / value), half_width)
    return value * math.exp(-min(down, 50.0)), value * math.exp(min(up, 50.0))


def aa_floor(ratios: Sequence[float]) -> float:
    """The noise floor of a geometric mean of ratios, from those of a kernel timed against itself, one a workload.

    Their errors are independent, so that the mean of n of them errs by the root of the sum of squares, divided by n:
    one workload too short to be timed well does not hide what the others show. At least what the mean itself was off.
    """
    if not ratios:
        return 0.0
    off = [math.log(ratio) for ratio in ratios]
    return math.expm1(max(math.hypot(*off), abs(sum(off))) / len(off))


def most_floor(floor: float, count: int) -> float:
    """The most that the floor of one of so many ratios can be, by `aa_floor` of all of them."""
    return math.expm1(count * math.log1p(floor))


def least_gain(floor: float) -> float:
    """The gain that a change must show beyond doubt: 1 %, or twice the noise floor where that is more."""
    return max(LEAST_GAIN, 2 * floor)


def verdict(
    ratio_low: float,
    ratio_high: float,
    floor: float,
    workloads: Mapping[str, tuple[float, float]] | None = None,
    floors: Mapping[str, float] | None = None,
) -> tuple[Verdict, str]:
    """The accept rule: what an interval of ratios says of the candidate, and why, in words.

    `better`: the whole interval lies above 1 + `least_gain`, and no workload got slower. `worse`: the whole interval
    lies as far below 1, or that of one workload does, by that workload's own floor. `same`: anything else; the two
    cannot be told apart.

    Args:
        floor: the noise floor of the mean over the workloads.
        workloads: by name, the interval (low, high) of each timed workload.
        floors: by name, the noise floor of each; the mean's where a name is missing.
    """
    bar = 1 + least_gain(floor)
    bars = {name: 1 + least_gain((floors or {}).get(name, floor)) for name in workloads or {}}
    slower = [(name, high) for name, (_, high) in (workloads or {}).items() if high < 1 / bars[name]]
    if ratio_high < 1 / bar:
        return "worse", f"slower: at best {_pct(ratio_high)} against the incumbent, beyond the bar of {_pct(1 / bar)}"
    if slower:
        name, high = slower[0]
        return "worse", f"workload {name!r} got slower, at best {_pct(high)}, whatever the others gained"
    if ratio_low > bar:
        return "better", f"faster: at least {_pct(ratio_low)} against the incumbent, above the bar of {_pct(bar)}"
    return "same", f"between {_pct(ratio_low)} and {_pct(ratio_high)}, which does not clear the bar of {_pct(bar)}"


def _pct(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f}%" if ratio < UNKNOWN_HIGH else "any gain"
