"""One palette and one frame for both figures; a figure as PNG, or as SVG that takes its colours from the page.

The SVG is drawn in the light colours, and each of them is then replaced by the page's variable of that name, so that
one drawing serves paper, light and dark.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from kopt_mcp import arguments
from kopt_mcp.optlog import visible

SURFACE = "#fffffe"
INK = "#1c2127"
MUTED = "#59626c"
LINE = "#dde1e6"
KEPT = "#0a7a5c"
REVERTED = "#6c7681"
FAILED = "#c2371f"
TARGET = "#9a5b00"
ROOF = "#6840b5"

VARIABLES = {
    SURFACE: "--surface",
    INK: "--ink",
    MUTED: "--muted",
    LINE: "--line",
    KEPT: "--kept",
    REVERTED: "--reverted",
    FAILED: "--failed",
    TARGET: "--target",
    ROOF: "--roof",
}
"""Each colour of the palette, and the page's variable that replaces it."""

DPI = 160
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
    "font.size": 9.5,
    "text.parse_math": False,  # a name may hold dollar signs
    "svg.fonttype": "none",
    "axes.unicode_minus": True,
}


def framed(width: float = 9.0, height: float = 4.4) -> tuple[Figure, Axes]:
    """An empty figure of so many inches, and its axes."""
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor=SURFACE, layout="constrained")
        axes = figure.add_subplot(facecolor=SURFACE)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
    axes.tick_params(which="both", colors=MUTED, length=0, pad=6)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def headed(axes: Axes, title: str, below: str) -> None:
    """A title over the axes, left, and a quieter line below it."""
    loud = axes.set_title(
        f"{cut(title, 80)}\n", loc="left", color=INK, fontsize=12, fontweight="bold", parse_math=False
    )
    loud.set_in_layout(False)
    quiet = axes.text(0, 1.035, below, transform=axes.transAxes, color=MUTED, parse_math=False)
    quiet.set_in_layout(False)  # it may be longer than the axes are wide


def cut(text: str, longest: int) -> str:
    """A name as it is drawn: every character seen, and no longer than there is room for."""
    return arguments.cut(" ".join(visible(text).split()), longest)


def at_the_right(axes: Axes, names: Sequence[tuple[float, str, str]]) -> None:
    """Names of levels in the right margin: (level, text of two lines, colour); those too near each other move apart."""
    top, least = axes.get_ylim()[1], 0.115
    at = [(level / top, text, color) for level, text, color in sorted(names)]
    places = [y for y, _, _ in at]
    for k in range(1, len(places)):
        if places[k] - places[k - 1] < least:
            middle = (places[k] + places[k - 1]) / 2
            places[k - 1], places[k] = middle - least / 2, middle + least / 2
    for (_, text, color), y in zip(at, places, strict=True):
        axes.annotate(
            text, (1, y), xycoords="axes fraction", xytext=(7, 0), textcoords="offset points", va="center", color=color,
            fontsize=8.5, fontweight="bold", linespacing=1.3, parse_math=False, annotation_clip=False,
        )  # fmt: skip


def to_png(figure: Figure) -> bytes:
    """The figure as it is committed and shown in a chat; the same bytes for the same figure and matplotlib."""
    with matplotlib.rc_context(SETTINGS):
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def to_svg(figure: Figure, name: str, label: str, titles: Mapping[str, str]) -> str:
    """The figure as an element of a page.

    Args:
        name: unlike any other figure's on the page; every id within begins with it.
        label: what a reader who cannot see it is told.
        titles: by an artist's gid, what is shown when the pointer rests on it.
    """
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", _opening(label), text, count=1, flags=re.DOTALL)
    for gid, title in titles.items():
        text = text.replace(f'<g id="{gid}">', f'<g id="{gid}"><title>{html.escape(title)}</title>', 1)
    text = re.sub(r'(?<= id=")|(?<=href="#)|(?<=url\(#)', f"{name}-", text)
    return re.sub("|".join(VARIABLES), lambda found: f"var({VARIABLES[found[0]]})", text)


def texts(figure: Figure) -> list[str]:
    """Every text of a figure, for tests and for the curious."""
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]


def _opening(label: str) -> str:
    # Text goes through re.sub: a backslash in it would be read as a reference to a group.
    safe = html.escape(visible(label)).replace("\\", "\\\\")
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {spaces} role="img" aria-label="{safe}" \\1>'
