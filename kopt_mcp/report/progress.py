"""The progress chart: the metric of every iteration, with its interval, the target and the roof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kopt_mcp.models import Metric
from kopt_mcp.optlog import UNITS, show, visible
from kopt_mcp.phases import Experiment
from kopt_mcp.report.drawing import (
    FAILED,
    INK,
    KEPT,
    MUTED,
    REVERTED,
    ROOF,
    SURFACE,
    TARGET,
    at_the_right,
    framed,
    headed,
)
from kopt_mcp.report.reading import Fate, Told, Try, best, counted, how_taken

MARKS: dict[Fate, dict[str, Any]] = {
    "baseline": {"marker": "s", "color": MUTED, "markerfacecolor": SURFACE},
    "kept": {"marker": "o", "color": KEPT, "markerfacecolor": KEPT},
    "reverted": {"marker": "o", "color": REVERTED, "markerfacecolor": SURFACE},
    "open": {"marker": "D", "color": INK, "markerfacecolor": SURFACE},
    "failed": {"marker": "X", "color": FAILED, "markerfacecolor": FAILED},
}
NAMES: dict[Fate, str] = {
    "baseline": "baseline",
    "kept": "kept",
    "reverted": "taken back",
    "open": "not decided yet",
    "failed": "wrong or failed, no time is shown",
}
Side = Literal["above", "below", "beside"]
NAMED_UP_TO = 14
"""With more iterations than this only the best one is named in the chart; the table beside it names all."""


def progress(told: Told) -> Figure:
    """The chart of one experiment."""
    state, tries = told.state, told.tries
    figure, axes = framed()
    metric = state.setup.target_metric
    top = _top(state, tries)
    axes.set_ylim(0, top)
    axes.set_xlim(-max(0.45, 0.04 * len(tries)), max(1, len(tries) - 1) + max(0.75, 0.07 * len(tries)))
    _lines(axes, state)
    _staircase(axes, tries)
    timeless = (
        0.95 * top if metric == "latency_us" else 0.0
    )  # the worse edge: a failure must not look like a fast kernel
    for each in tries:
        _mark(axes, each, timeless, top)
    _names(axes, state, tries, timeless)
    axes.set_xlabel("iteration", color=MUTED)
    axes.set_ylabel(_axis(metric), color=MUTED)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=20, min_n_ticks=1))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    headed(axes, f"{state.setup.problem.name} on {state.setup.device.name}", _below(state))
    _legend(figure, tries)
    return figure


def label(told: Told) -> str:
    """The chart in a sentence, for who cannot see it."""
    state, setup = told.state, told.state.setup
    metric = setup.target_metric
    parts = [f"{show(setup.measurement.value, metric)} at the baseline", f"{show(best(state).value, metric)} at best"]
    parts += [f"target {show(setup.target_value, metric)}"]
    parts += [f"measured roof {show(setup.roof, metric)}"] if setup.roof else []
    return f"Progress over {len(state.iterations)} iterations ({counted(told.tries)}): {', '.join(parts)}."


def titles(told: Told) -> dict[str, str]:
    """What each mark says when the pointer rests on it."""
    metric = told.state.setup.target_metric
    hypotheses = {i.patch.iteration: i.patch.hypothesis for i in told.state.iterations}
    found = {}
    for each in told.tries:
        value = show(each.value, metric) if each.value is not None else each.why or "no time"
        words = visible(hypotheses.get(each.iteration, "the kernel as it was"))
        found[f"try-{each.iteration}"] = f"{each.iteration}: {words} ({value}, {NAMES[each.fate]})"
    return found


def _top(state: Experiment, tries: Sequence[Try]) -> float:
    values = [t.value for t in tries if t.value is not None] + [t.high for t in tries if t.high is not None]
    values += [t.low for t in tries if t.low is not None]  # of times, the worse end is the higher
    room = 1.3 if state.setup.target_metric == "latency_us" else 1.12  # above the slowest, for failures and names
    return room * max([*values, state.setup.target_value, state.setup.roof or 0.0])


def _lines(axes: Axes, state: Experiment) -> None:
    """Target and roof across the chart, named beside it."""
    setup = state.setup
    metric = setup.target_metric
    axes.axhline(setup.target_value, color=TARGET, linewidth=1.3, linestyle=(0, (5, 3)), zorder=1.5)
    names = [(setup.target_value, f"target\n{show(setup.target_value, metric)}", TARGET)]
    if setup.roof:
        axes.axhline(setup.roof, color=ROOF, linewidth=1.3, zorder=1.5)
        names.append((setup.roof, f"measured roof\n{show(setup.roof, metric)}", ROOF))
    at_the_right(axes, names)


def _staircase(axes: Axes, tries: Sequence[Try]) -> None:
    """The best so far, as a line that steps at every iteration that was kept."""
    steps = [(t.iteration, t.value) for t in tries if t.fate in ("baseline", "kept") and t.value is not None]
    ends = [*steps, (len(tries) - 1 + 0.5, steps[-1][1])]
    axes.step([x for x, _ in ends], [y for _, y in ends], where="post", color=KEPT, linewidth=2, zorder=2)


def _mark(axes: Axes, each: Try, timeless: float, top: float) -> None:
    mark = MARKS[each.fate]
    if each.low is not None and each.high is not None:
        seen = abs(each.high - each.low) > 0.03 * top  # a shorter one is behind the mark
        cap: dict[str, Any] = {"marker": "_", "markersize": 12, "markeredgewidth": 1.6} if seen else {}
        axes.plot([each.iteration] * 2, [each.low, each.high], color=mark["color"], linewidth=1.6, zorder=3, **cap)
    style: dict[str, Any] = {
        "linestyle": "none",
        "markersize": 9 if each.fate == "failed" else 8,
        "markeredgewidth": 1.8,
    }
    (line,) = axes.plot([each.iteration], [each.value or timeless], zorder=4, clip_on=False, **style, **mark)
    line.set_gid(f"try-{each.iteration}")


def _names(axes: Axes, state: Experiment, tries: Sequence[Try], timeless: float) -> None:
    metric = state.setup.target_metric
    last = max((t.iteration for t in tries if t.fate == "kept"), default=0)
    for each in tries:
        if len(tries) > NAMED_UP_TO and each.iteration not in (0, last):
            continue
        if each.value is None:
            color = FAILED if each.fate == "failed" else MUTED
            _name(axes, each, timeless, _why(each), color, "below" if timeless else "above")
            continue
        # The unit stands at the baseline and on the axis: with it, neighbours cover each other.
        text = show(each.value, metric) if each.fate == "baseline" else show(each.value, metric).split()[0]
        text += f"\n{_signed(each.gain_pct)} %" if each.gain_pct is not None else ""
        color = {"kept": KEPT, "baseline": INK}.get(each.fate, MUTED)
        _name(axes, each, each.value, text, color, _side(each, axes.get_ylim()[1], metric))


def _side(each: Try, top: float, metric: Metric) -> Side:
    """Where a name is not in the way of the line, which rises to a kept rate, and falls to a kept time."""
    assert each.value is not None
    if metric == "latency_us":
        return "below" if each.fate in ("kept", "open") and each.value > 0.2 * top else "above"
    return "beside" if each.value > 0.78 * top else "below" if each.fate == "reverted" else "above"


def _name(axes: Axes, each: Try, at: float, text: str, color: str, side: Side) -> None:
    x, y, across, along = {"above": (0, 9, "center", "bottom"), "below": (0, -9, "center", "top"),
                           "beside": (9, -7, "left", "top")}[side]  # fmt: skip
    axes.annotate(
        text,
        (each.iteration, at),
        xytext=(x, y),
        textcoords="offset points",
        ha=across,
        va=along,
        color=color,
        fontsize=8.5,
        fontweight="bold" if each.fate == "kept" else "normal",
        linespacing=1.35,
        parse_math=False,
        zorder=3.5,
        bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1.5},  # so that no line crosses the words
    )


def _signed(percent: float) -> str:
    return f"{percent:+.1f}" if abs(percent) >= 0.05 else "±0.0"


def _why(each: Try) -> str:
    return each.why.replace("_", " ").lower().replace("incorrect numerical", "wrong") or "no time"


def _legend(figure: Figure, tries: Sequence[Try]) -> None:
    present = [fate for fate in MARKS if any(t.fate == fate for t in tries)]
    marks = [
        Line2D([], [], linestyle="none", markersize=7, markeredgewidth=1.6, label=NAMES[f], **MARKS[f]) for f in present
    ]
    figure.legend(
        handles=marks, loc="outside lower left", ncols=len(marks), frameon=False, labelcolor=MUTED, fontsize=8.5
    )


def _axis(metric: Metric) -> str:
    return f"{UNITS[metric]} (lower is better)" if metric == "latency_us" else UNITS[metric]


def _below(state: Experiment) -> str:
    setup = state.setup
    many = len(setup.measurement.timings)
    mean = f"geometric mean of {many} workloads, " if many > 1 else ""
    return f"{mean}{how_taken(state)}; bars: 95 % interval of the ratio to the incumbent"
