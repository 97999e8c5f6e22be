"""experiments/README.md: the log for people, rendered from the journals. One marked section an experiment.

Text outside the markers is never touched.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

from kopt_mcp.arguments import cut
from kopt_mcp.disk import Disk
from kopt_mcp.errors import WorkspaceFailed
from kopt_mcp.metrics import gap
from kopt_mcp.models import Metric
from kopt_mcp.phases import Experiment, Iteration

UNITS: dict[Metric, str] = {"gbps": "GBps", "tflops": "TFLOPS", "latency_us": "us"}
WORD = "the test script's own word; nothing was checked or timed by kopt-mcp"
HEAD = (
    "# Optimization log\n\nWritten by kopt-mcp from the journals beside this file; text outside the markers is kept.\n"
)


class Line(NamedTuple):
    """One line of the log, as plain text: nothing in it is escaped for any format."""

    iter: str
    action: str
    tier: str
    correctness: str
    metric: str
    delta: str
    status: str


def lines(state: Experiment) -> list[Line]:
    """The baseline and every iteration, in order."""
    setup = state.setup
    first = Line("0", "baseline", "-", "PASS", show(setup.measurement.value, setup.target_metric), "-", "-")
    return [first, *(_line(state, iteration) for iteration in state.iterations)]


def table(state: Experiment, longest: int = 1000) -> str:
    """The iterations as a Markdown table, actions cut to `longest` characters."""
    head = [
        "| Iter | Action | Tier | Correctness | Metric | Delta | Status |",
        "|------|--------|------|-------------|--------|-------|--------|",
    ]
    rows = (line._replace(action=cut(line.action, longest)) for line in lines(state))
    return "\n".join([*head, *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)])


def section(state: Experiment) -> str:
    """All that the log says of one experiment, between its markers."""
    setup = state.setup
    unit = UNITS[setup.target_metric]
    missing = gap(setup.target_metric, setup.measurement.value, setup.target_value)
    first = [
        "## Iteration 0 (Baseline)",
        f"- Experiment: {state.id}",
        f"- GPU: {_cell(setup.device.name)}",
        f"- Kernel: {_cell(setup.kernel)}",
        "- Correctness: PASS",
        *([f"- Trust: reported ({WORD})"] if setup.trust == "reported" else []),
        f"- {unit}: {_short(setup.measurement.value)}",
        f"- Target: {show(setup.target_value, setup.target_metric)} ({_source(state)})",
        f"- Gap: {show(missing, setup.target_metric)} ({100 * missing / setup.target_value:.1f}%)",
        f"- Noise: {100 * setup.floor:.1f}%",
        *([f"- Measured and checked {_cell(only)}"] if (only := narrowed(state)) else []),
        *(["- Problem: unreviewed (git did not have it as it was)"] if setup.problem_review == "unreviewed" else []),
        *([f"- Problem lets pass: {_cell(', '.join(setup.weaknesses))}"] if setup.weaknesses else []),
    ]
    title = f"## Optimization: {_cell(setup.problem.name)} on {_cell(setup.device.name)}"
    notes = [f"- Iteration {i.patch.iteration}: {_cell(note)}" for i in state.iterations if (note := _note(i))]
    parts = ["\n".join(first), title, table(state), *(["\n".join(notes)] if notes else [])]
    if state.ended:
        parts.append(final(state))
    if state.overall:
        parts.append(f"- {overall(state)}")
    begin, end = _markers(state.id)
    return "\n\n".join([begin, *parts, end]) + "\n"


def final(state: Experiment) -> str:
    """The closing line. A target is only called met when the last, cold evaluation agreed."""
    setup = state.setup
    value = state.measured[state.best].value
    share = f" ({100 * closeness(state, value):.1f}% of peak)" if setup.roof else ""
    count = len(state.iterations)
    many = f"{count} iteration{'' if count == 1 else 's'}"
    if not state.confirmed:
        met = "NOT confirmed in a cold process, nothing is claimed"
    else:
        met = "target met" if state.ended == "TARGET_MET" else f"target not met ({state.ended})"
    said = f"; trust: reported, {WORD}" if setup.trust == "reported" else ""
    part = f"; {only}" if (only := narrowed(state)) else ""
    return f"Final: {show(value, setup.target_metric)}{share}, {many}, {met}{part}{said}."


def narrowed(state: Experiment) -> str:
    """Which workloads were chosen, where not all of the problem's for the device were; else nothing.

    An agent may choose them, and on those that it leaves out a kernel may be slower, or wrong.
    """
    chosen, there = state.setup.workloads, len(state.setup.problem.workloads)
    if chosen is None or len(chosen) == there:
        return ""
    return f"on {len(chosen)} of {there} workloads only ({cut(', '.join(chosen), 200)}), nothing is known of the others"


def overall(state: Experiment) -> str:
    """What all iterations together have brought, by one evaluation."""
    ratio = state.overall
    assert ratio is not None
    return (
        f"In turns with the first kernel, in a cold process: {ratio.value:.3g} times as fast "
        f"(between {ratio.low:.3g} and {ratio.high:.3g})"
    )


def _source(state: Experiment) -> str:
    setup = state.setup
    if not setup.roof or "peak" in setup.target_source:
        return _cell(setup.target_source)
    return f"{100 * closeness(state, setup.target_value):.0f}% of peak, {_cell(setup.target_source)}"


def closeness(state: Experiment, value: float) -> float:
    """How near a value is to the roof, 1 at the roof; 0 where the roof is not known."""
    setup = state.setup
    if not setup.roof or not value:
        return 0.0
    return setup.roof / value if setup.target_metric == "latency_us" else value / setup.roof


def show(value: float, metric: Metric) -> str:
    """A value with its unit, four digits or all before the point."""
    digits = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{digits} {UNITS[metric]}"


def _short(value: float) -> str:
    """As the seed writes it, with one digit behind the point; with four in all where that would say too little."""
    return f"{value:.1f}" if value >= 100 else f"{value:.4g}"


def replaced(text: str, state: Experiment) -> str:
    """The log's text with this experiment's section rendered anew, or added at the end."""
    begin, end = _markers(state.id)
    old = re.compile(re.escape(begin) + r"\n.*?" + re.escape(end) + r"\n?", re.DOTALL)
    new = section(state)
    if old.search(text):
        return old.sub(lambda _: new, text, count=1)
    head = text if text.strip() else HEAD
    return head.rstrip("\n") + "\n\n" + new


def write(experiments: Path, state: Experiment, disk: Disk) -> None:
    """Bring the log up to date with an experiment; the file is left alone when it is.

    Raises:
        WorkspaceFailed: it cannot be read or written.
    """
    path = experiments / "README.md"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise WorkspaceFailed(
            f"experiments/README.md cannot be read: {error}; move it away, it is rendered anew."
        ) from error
    new = replaced(text, state)
    if new != text:
        disk.replace(path, new.encode(errors="replace"))


def _line(state: Experiment, iteration: Iteration) -> Line:
    patch, metric = iteration.patch, state.setup.target_metric
    measurement = iteration.benchmark.measurement if iteration.benchmark else None
    ratio = iteration.benchmark.evaluation.ratio if iteration.benchmark and _trusted(iteration) else None
    return Line(
        iter=str(patch.iteration),
        action=patch.hypothesis,
        tier=f"T{patch.tier}",
        correctness=_correctness(iteration),
        metric=show(measurement.value, metric) if measurement and _trusted(iteration) else "-",
        delta=f"{100 * (ratio.value - 1):+.1f}%" if ratio else "-",
        status=status(iteration),
    )


def status(iteration: Iteration) -> str:
    """What became of an iteration, as the table says it."""
    decision = iteration.decision
    if decision is None:
        return "open"
    word = iteration.benchmark is not None and iteration.benchmark.evaluation.trust == "reported"
    said = " (trust: reported)" if word else ""
    return f"{decision.status or 'stopped'}{', reverted' if decision.reverted else ''}{said}"


def _trusted(iteration: Iteration) -> bool:
    return iteration.benchmark is not None and iteration.benchmark.evaluation.status in ("PASSED", "INCONCLUSIVE")


def _correctness(iteration: Iteration) -> str:
    if iteration.verify is None:
        return "-"
    seen = [iteration.verify.evaluation.status]
    seen += [iteration.benchmark.evaluation.status] if iteration.benchmark else []
    wrong = [s for s in seen if s not in ("PASSED", "INCONCLUSIVE")]
    if iteration.verify.evaluation.status == "INCONCLUSIVE":
        wrong = ["INCONCLUSIVE"]
    return f"FAIL ({wrong[0]})" if wrong else "PASS"


def _note(iteration: Iteration) -> str:
    patch = iteration.patch
    notes = [f"because: {patch.because}" if patch.because else ""]
    notes += [f"the best kernel of {patch.copied}, copied whole" if patch.copied else ""]
    notes += [iteration.decision.reason] if iteration.decision else []
    return "; ".join(n for n in notes if n)


def visible(text: str) -> str:
    """Text whose every character is seen: one that is not (a control, or one that turns the writing direction) would
    let a reader see other code than the compiler does, and is written as its number."""
    return "".join(
        f"<U+{ord(c):04X}>" if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t" else c for c in text
    )


def _cell(text: str) -> str:
    """Text that can break neither a table, nor a line, nor a marker, and that is no HTML, link or picture."""
    one_line = visible(" ".join(text.split())).replace("\\", "\\\\").replace("|", "\\|")
    return re.sub(r"\](?=[(\[])", r"\\]", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", one_line))


def _markers(experiment: str) -> tuple[str, str]:
    return f"<!-- kopt-mcp {experiment} begin -->", f"<!-- kopt-mcp {experiment} end -->"
