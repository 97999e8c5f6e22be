"""The roofline plot: what each timed workload reached, below what memory and arithmetic allow on this device.

See `limits` for what its numbers mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kopt_mcp.optlog import visible
from kopt_mcp.phases import Experiment
from kopt_mcp.report.drawing import INK, KEPT, LINE, MUTED, ROOF, SURFACE, cut, framed, headed
from kopt_mcp.report.limits import Point, Roof, points, roofs

NAMED_UP_TO = 3
"""With more workloads than this the points are told apart by the table beside the plot."""


def roofline(state: Experiment) -> Figure:
    """The plot of one experiment; ask `limits.why_not` first."""
    found = points(state)
    limits = list(roofs(state.setup.device, sorted({p.dtype for p in found})))
    figure, axes = framed()
    axes.grid(axis="x", color=LINE, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = _reach(found, limits)
    axes.set_xlim(low, high)
    slope = max((r.slope for r in limits if r.slope), default=None)
    _roofs(axes, limits, low, high)
    tops = [r.level for r in limits if r.level] + [p.after for p in found]
    bottom = 0.4 * min(min(p.before for p in found), low * slope if slope else float("inf"))
    axes.set_ylim(bottom, 2.2 * max(tops))
    _level_names(axes, limits)
    _points(axes, found)
    axes.set_xlabel("arithmetic intensity, operations per byte that must be moved", color=MUTED)
    axes.set_ylabel("TFLOP/s", color=MUTED)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axis.set_minor_formatter(lambda value, _: "")
    title = f"{state.setup.problem.name} under the roofs of {state.setup.device.name}"
    headed(axes, title, "solid: measured on this very device; dashed: nominal")
    _legend(figure, found)
    figure.draw_without_rendering()  # places the axes, so that the angle of the slopes is known
    _slope_name(axes, limits)
    return figure


def label(state: Experiment) -> str:
    """The plot in a sentence, for who cannot see it."""
    told = [
        f"{p.workload} at {p.intensity:.3g} operations per byte reaches {p.after:.4g} TFLOP/s"
        + (f", {100 * p.share:.0f} % of its measured roof" if p.share else "")
        for p in points(state)
    ]
    return f"Roofline: {'; '.join(told)}."


def titles(state: Experiment) -> dict[str, str]:
    """What each point says when the pointer rests on it."""
    found = {}
    for number, p in enumerate(points(state)):
        share = f", {100 * p.share:.1f} % of its measured roof" if p.share else ""
        found[f"best-{number}"] = visible(f"{p.workload}: {p.after:.4g} TFLOP/s{share}")
        found[f"base-{number}"] = visible(f"{p.workload}: {p.before:.4g} TFLOP/s at the baseline")
    return found


def _reach(found: Sequence[Point], limits: Sequence[Roof]) -> tuple[float, float]:
    """The intensities that the plot shows: the points, and where the slope meets the levels."""
    slopes, levels = [r.slope for r in limits if r.slope], [r.level for r in limits if r.level]
    ridges = [level / slope for level in levels for slope in slopes]
    near = [p.intensity for p in found]
    return min([*near, *ridges]) / 6, max([*near, *ridges]) * 8


def _roofs(axes: Axes, limits: Sequence[Roof], low: float, high: float) -> None:
    for limit in limits:
        same = [o for o in limits if o.measured == limit.measured]
        style = "solid" if limit.measured else (0, (5, 3))
        ends, heights = _line(limit, same, low, high)
        axes.plot(ends, heights, color=_color(limit), linewidth=1.7, linestyle=style, zorder=2)


def _line(limit: Roof, same: Sequence[Roof], low: float, high: float) -> tuple[list[float], list[float]]:
    """Where a limit holds: the slope up to the highest level of its kind, a level from the slope of its kind on."""
    if limit.slope:
        top = max((o.level for o in same if o.level), default=None)
        end = top / limit.slope if top else high
        return [low, end], [low * limit.slope, end * limit.slope]
    level = limit.level or 0.0
    slope = next((o.slope for o in same if o.slope), None)
    return [level / slope if slope else low, high], [level, level]


def _slope_name(axes: Axes, limits: Sequence[Roof]) -> None:
    """The memory rates, written along their slope: above it, where no point can be."""
    slopes = [r for r in limits if r.slope]
    if not slopes:
        return
    steepest = max(r.slope or 0 for r in slopes)
    ridge = max((r.level or 0 for r in limits), default=0) / steepest or axes.get_xlim()[1]
    at = math.sqrt(axes.get_xlim()[0] * ridge)
    here, there = axes.transData.transform([(x, x * steepest) for x in (at, 2 * at)])
    angle = math.atan2(there[1] - here[1], there[0] - here[0])
    axes.annotate(
        f"memory: {_rates([(r.slope or 0) * 1e3 for r in slopes], slopes, 'GB/s')}", (at, at * steepest),
        xytext=(-7 * math.sin(angle), 7 * math.cos(angle)), textcoords="offset points",
        rotation=math.degrees(angle), rotation_mode="anchor", ha="center", va="bottom", color=ROOF, fontsize=8.5,
        fontweight="bold",
    )  # fmt: skip


def _level_names(axes: Axes, limits: Sequence[Roof]) -> None:
    """The rates of arithmetic, above the right end of their levels; one text for those that lie close together."""
    groups: list[list[Roof]] = []
    for limit in sorted((r for r in limits if r.level), key=lambda r: -(r.level or 0)):
        near = groups and (groups[-1][0].level or 0) < 1.8 * (limit.level or 0)
        groups[-1].append(limit) if near else groups.append([limit])
    for group in groups:
        names = ", ".join(dict.fromkeys(r.dtype for r in group))
        axes.annotate(
            f"{names}: {_rates([r.level or 0 for r in group], group, 'TFLOP/s')}",
            (axes.get_xlim()[1], max(r.level or 0 for r in group)), xytext=(-3, 4), textcoords="offset points",
            ha="right", va="bottom", color=ROOF, fontsize=8.5, fontweight="bold",
        )  # fmt: skip


def _rates(values: Sequence[float], limits: Sequence[Roof], unit: str) -> str:
    """`799, 769 TFLOP/s measured, 989 nominal`."""
    parts = list[str]()
    for measured in (True, False):
        shown = dict.fromkeys(
            f"{v:,.0f}" if v >= 100 else f"{v:.3g}"
            for v, limit in zip(values, limits, strict=True)
            if limit.measured == measured
        )
        if shown:
            parts.append(f"{', '.join(shown)} {'' if parts else unit + ' '}{'measured' if measured else 'nominal'}")
    return ", ".join(parts)


def _color(limit: Roof) -> str:
    return ROOF if limit.measured else MUTED


def _points(axes: Axes, found: Sequence[Point]) -> None:
    for number, p in enumerate(found):
        if p.roof:
            axes.plot([p.intensity] * 2, [p.after, p.roof], color=ROOF, linewidth=1, linestyle=(0, (1, 2)), zorder=1.5)
        if p.after != p.before:
            arrow = {"arrowstyle": "-|>", "color": KEPT, "linewidth": 1.4, "shrinkA": 6, "shrinkB": 6}
            axes.annotate("", (p.intensity, p.after), (p.intensity, p.before), arrowprops=arrow, zorder=3)
        style: dict[str, Any] = {"linestyle": "none", "markersize": 8, "markeredgewidth": 1.8, "zorder": 4}
        (before,) = axes.plot([p.intensity], [p.before], "o", color=MUTED, markerfacecolor=SURFACE, **style)
        (after,) = axes.plot([p.intensity], [p.after], "o", color=KEPT, **style)
        before.set_gid(f"base-{number}")
        after.set_gid(f"best-{number}")
        if len(found) <= NAMED_UP_TO:
            share = f"\n{100 * p.share:.0f} % of its roof" if p.share else ""
            axes.annotate(
                cut(p.workload, 40) + share, (p.intensity, p.after), xytext=(12, -2), textcoords="offset points",
                va="top", color=INK, fontsize=8.5, linespacing=1.35, parse_math=False,
            )  # fmt: skip


def _legend(figure: Figure, found: Sequence[Point]) -> None:
    many = "workload" if len(found) == 1 else "workloads"
    marks = [
        Line2D([], [], linestyle="none", marker="o", markersize=7, markeredgewidth=1.6, color=color, label=text,
               markerfacecolor=face)
        for color, face, text in ((MUTED, SURFACE, f"{many} at the baseline"), (KEPT, KEPT, f"{many} at best"))
    ]  # fmt: skip
    figure.legend(handles=marks, loc="outside lower left", ncols=2, frameon=False, labelcolor=MUTED, fontsize=8.5)
