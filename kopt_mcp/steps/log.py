"""All that an agent needs to go on, read from the journals; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence

from kopt_mcp import optlog
from kopt_mcp.arguments import cut
from kopt_mcp.errors import JournalCorrupt
from kopt_mcp.events import Event
from kopt_mcp.experiments import Experiments
from kopt_mcp.guards import short
from kopt_mcp.lessons import Lesson, found
from kopt_mcp.models import Tool
from kopt_mcp.phases import Experiment, legal
from kopt_mcp.results import ExperimentLine, LogResult
from kopt_mcp.steps import provenance
from kopt_mcp.steps.call import rounded
from kopt_mcp.steps.decide import best_iteration
from kopt_mcp.steps.diagnose import left
from kopt_mcp.workspace import Workspace

SHOWN = 20
START: tuple[Tool, ...] = ("detect_gpu", "baseline")


def overview(experiments: Experiments, query: str | None, past: Sequence[Lesson] = ()) -> LogResult:
    """Every experiment in a line, or the iterations, here and in the user's memory, that a query finds."""
    states, damaged = [], []
    for name in experiments.names():
        try:
            state = experiments.replay(name)
        except JournalCorrupt:
            damaged.append(name)
            continue
        if state is not None:
            states.append(state)
    matches = [row for state in states for row in _matching(state, query)] if query else []
    here = {state.id for state in states}
    matches += found((lesson for lesson in past if lesson.experiment not in here), query) if query else []
    broken = tuple(damaged[:SHOWN])
    if query:
        return LogResult(matches=tuple(matches[:SHOWN]), damaged=broken, next=START)
    open_first = sorted(states, key=lambda s: s.phase == "done")
    # To go on with one that is not over, its own log is what to read.
    following = ("log", *START) if any(state.phase != "done" for state in states) else START
    return LogResult(experiments=tuple(map(_line, open_first[:SHOWN])), damaged=broken, next=following)


def one(state: Experiment, events: list[Event], workspace: Workspace, query: str | None) -> LogResult:
    """One experiment in full."""
    setup, found = state.setup, state.diagnosis
    current = found is not None and found.sha256 == state.current and state.phase != "done"
    return LogResult(
        experiment=state.id,
        phase=state.phase,
        next=tuple(legal(state.phase)),
        kernel=setup.kernel,
        test=setup.test,
        device=setup.device.name,
        metric=setup.target_metric,
        baseline=rounded(setup.measurement.value),
        best=rounded(state.measured[state.best].value),
        best_iteration=best_iteration(state),
        target=rounded(setup.target_value),
        iterations_left=max(0, setup.max_iterations - len(state.iterations)),
        on_disk=_on_disk(state, workspace),
        pending=_pending(state),
        diagnosis=found.diagnosis.summary if found is not None and current else "",
        ideas=tuple(f"{i.tier}/{i.id}: {cut(i.text, 100)}" for i in left(found.diagnosis.ideas, state)[:8])
        if found is not None and current
        else (),
        tried=tuple(_tried(state)),
        read=tuple(found.diagnosis.read) if found is not None and current else (),
        table=_table(state),
        certificate=_certificate(state),
        trust=setup.trust,
        problem=provenance.standing(workspace, setup),
        weaknesses=setup.weaknesses[:10],
        refusals=tuple(_refusals(events)),
        matches=tuple(_matching(state, query)[:SHOWN]) if query else (),
    )


def _line(state: Experiment) -> ExperimentLine:
    setup = state.setup
    return ExperimentLine(
        experiment=state.id,
        kernel=setup.kernel,
        device=setup.device.name,
        phase=state.phase,
        metric=setup.target_metric,
        baseline=rounded(setup.measurement.value) or 0.0,
        best=rounded(state.measured[state.best].value) or 0.0,
        target=rounded(setup.target_value) or 0.0,
        iterations=len(state.iterations),
        ended=state.ended,
        trust=setup.trust,
    )


def _table(state: Experiment) -> str:
    lines = optlog.table(state, longest=80).split("\n")
    if len(lines) > SHOWN + 3:
        lines = [
            *lines[:3],
            f"| ... | {len(lines) - 3 - SHOWN} more in experiments/README.md | | | | | |",
            *lines[-SHOWN:],
        ]
    return "\n".join([*lines, *([optlog.final(state)] if state.ended else [])])


def _certificate(state: Experiment) -> str:
    """Of the best version's number: its last cold evaluation, else the benchmark that it won, else the baseline."""
    found = [state.setup.certificate] if state.best == state.setup.sha256 else []
    for iteration in state.iterations:
        if iteration.patch.sha256 == state.best and iteration.benchmark is not None:
            found.append(iteration.benchmark.certificate)
        cold = iteration.decision.confirmations if iteration.decision is not None else ()
        found += [c.certificate for c in cold if c.sha256 == state.best]
    known = [certificate for certificate in found if certificate is not None]
    return known[-1].short() if known else ""


def _pending(state: Experiment) -> str:
    iteration = state.open_iteration
    if iteration is None:
        return ""
    return f"iteration {iteration.patch.iteration} ({iteration.patch.hypothesis!r}) is {state.phase}"


def _on_disk(state: Experiment, workspace: Workspace) -> str:
    kernel, now = state.setup.kernel, workspace.hash(state.setup.kernel)
    edited = [path for path, sha256 in state.setup.problem_files.items() if workspace.hash(path) != sha256]
    if edited and state.phase != "done":
        return f"{', '.join(edited)} is not as it was at the baseline; every step is refused until it is restored"
    if now == state.current:
        return f"{kernel} is version {short(now)}, as it should be"
    what = f"version {short(now)}" if now else "missing"
    if now in state.hashes or now is None:
        return f"{kernel} is {what}, the next step restores {short(state.current)}"
    return f"{kernel} is {what}, edited outside the loop; expected {short(state.current)}"


def _tried(state: Experiment) -> list[str]:
    failed = [i for i in state.iterations if i.decision is not None and i.decision.reverted]
    return [f"T{i.patch.tier} {i.patch.idea or cut(i.patch.hypothesis, 80)}: {optlog.status(i)}" for i in failed[-10:]]


def _refusals(events: list[Event]) -> list[str]:
    recent: list[str] = []
    for event in reversed(events):
        if event.outcome == "ok" or len(recent) == 3:
            break
        recent.append(f"{event.tool} {event.outcome}: {cut(str(event.data.get('text', '')), 200)}")
    return recent[::-1]


def _matching(state: Experiment, query: str) -> list[str]:
    words = query.lower().split()
    rows = []
    for i in state.iterations:
        why = f"; {i.decision.reason}" if i.decision else ""
        row = f"{state.id} #{i.patch.iteration} T{i.patch.tier} {i.patch.hypothesis}: {optlog.status(i)}{why}"
        searched = f"{row} {i.patch.idea or ''} {state.setup.kernel} {state.setup.device.name}".lower()
        if all(word in searched for word in words):
            rows.append(cut(row, 240))
    return rows
