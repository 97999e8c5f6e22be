"""The page: one HTML document that needs nothing else, and its inner part alone for the pages that renew themselves.

What agents and kernels say is hostile. Every value is escaped where it is put in (autoescape, and no value is ever
marked as safe but our own two drawings), characters that cannot be seen are written as their numbers, and by its own
policy the document runs no script at all, so that even a hole in the escaping would be only ugly.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import TypeAdapter

from kopt_mcp import __version__, optlog
from kopt_mcp.phases import Experiment
from kopt_mcp.report import limits, progress, roofline
from kopt_mcp.report.drawing import to_svg
from kopt_mcp.report.reading import Told, best, counted, headline, how_taken
from kopt_mcp.steps.decide import best_iteration

FOLDER = Path(__file__).parent / "templates"
STYLE = (FOLDER / "style.css").read_text(encoding="utf-8")


def page(told: Told) -> str:
    """The whole document, to be opened from a disk."""
    return document(title(told.state), view(told))


def view(told: Told) -> str:
    """What the document's `main` holds."""
    state = told.state
    return (
        _environment()
        .get_template("view.html")
        .render(
            told=told,
            state=state,
            setup=state.setup,
            title=title(state),
            headline=headline(state),
            verdict=_verdict(state),
            counted=counted(told.tries),
            how_taken=how_taken(state),
            lines=optlog.lines(state),
            final=optlog.final(state) if state.ended else "",
            best=best(state),
            best_iteration=best_iteration(state),
            speedup=_speedup(state),
            share=optlog.closeness(state, best(state).value),
            progress=Markup(to_svg(progress.progress(told), "progress", progress.label(told), progress.titles(told))),
            roofline=_roofline(state),
            why_no_roofline=limits.why_not(state),
            points=limits.points(state),
            began=told.events[0].time[:16].replace("T", " "),
            took=_took(told),
            version=__version__,
        )
    )


def listing(states: Sequence[Experiment]) -> str:
    """What `main` holds of the page that lists all experiments."""
    return _environment().get_template("listing.html").render(states=states, best=best, headline=headline)


def document(name: str, inner: str, script: str = "", connect: str = "'none'", tag: str = "") -> str:
    """A document around a rendered inner part.

    Args:
        script: the only script that the document's policy lets run, by its hash; none when empty.
        connect: where that script may fetch from.
        tag: the state of the journal that the inner part tells of, for the script to compare.
    """
    return (
        _environment()
        .get_template("document.html")
        .render(
            title=name,
            inner=Markup(inner),
            style=Markup(STYLE),
            script=Markup(script),
            policy=policy(script, connect),
            tag=tag,
        )
    )


def policy(script: str = "", connect: str = "'none'") -> str:
    """The content security policy of a document with this script."""
    run = f"script-src 'sha256-{_digest(script)}'; connect-src {connect}; " if script else ""
    return f"default-src 'none'; {run}style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def title(state: Experiment) -> str:
    """`softmax on NVIDIA H200`."""
    return f"{state.setup.problem.name} on {state.setup.device.name}"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    made.filters.update(value=_value, number=_number, pct=_pct, us=_us, short=lambda sha256: sha256[:12])
    made.globals.update(show=optlog.show, status=optlog.status, pairs=_pairs)
    return made


def _visible(given: Any) -> Any:
    return optlog.visible(given) if type(given) is str else given


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _roofline(state: Experiment) -> Markup | str:
    if limits.why_not(state):
        return ""
    figure = roofline.roofline(state)
    return Markup(to_svg(figure, "roofline", roofline.label(state), roofline.titles(state)))


def _verdict(state: Experiment) -> str:
    if state.ended is None:
        return "running"
    if not state.confirmed:
        return "bad"
    return "good" if state.ended == "TARGET_MET" else "neutral"


def _speedup(state: Experiment) -> float:
    """The best version's speed over the baseline's: as taken in turns at the end, else from the two measurements."""
    if state.overall:
        return state.overall.value
    first, last = state.setup.measurement.value, best(state).value
    return first / last if state.setup.target_metric == "latency_us" else last / first


def _took(told: Told) -> str:
    ends = [datetime.fromisoformat(told.events[at].time) for at in (0, -1)]
    seconds = round((ends[1] - ends[0]).total_seconds())
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def _value(given: float | None, metric: Any) -> str:
    return "-" if given is None else optlog.show(given, metric)


def _number(given: float | None, digits: int = 4) -> str:
    return "-" if given is None else f"{given:,.{digits}g}" if abs(given) < 1000 else f"{given:,.0f}"


def _pct(given: float | None, digits: int = 1) -> str:
    return "-" if given is None else f"{100 * given:.{digits}f} %"


def _us(given: float | None) -> str:
    return "-" if given is None else f"{given:,.2f}"


def _pairs(record: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a record that hold something, with their names in words."""
    for name, given in TypeAdapter(type(record)).dump_python(record, mode="json").items():
        if given not in (None, "", [], {}):
            yield name.replace("_", " "), given
