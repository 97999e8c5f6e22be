"""The order of the loop: one table of which tool is legal when, and one fold from events to an experiment. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import get_args

from pydantic import ValidationError

from kopt_mcp.errors import JournalCorrupt
from kopt_mcp.evaluator.records import Ratio
from kopt_mcp.events import (
    BaselineData,
    BenchmarkData,
    DecideData,
    DiagnoseData,
    Event,
    Measurement,
    PatchData,
    ProfileData,
    VerifyData,
)
from kopt_mcp.models import Bound, Ending, Phase, Record, Tool

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Row:
    """One tool's place in the loop."""

    tool: Tool
    allowed: tuple[Phase, ...]
    leads_to: str
    """For the reader; the fold says it exactly."""
    note: str = ""


ANYTIME: tuple[Tool, ...] = ("detect_gpu", "log")
"""Tools that only read."""

TABLE: tuple[Row, ...] = (
    Row("baseline", ("new",), "ready"),
    Row("profile", ("ready", "diagnosed"), "profiled"),
    Row("diagnose", ("ready", "profiled"), "diagnosed", "needs no profiler"),
    Row("apply_patch", ("diagnosed",), "patched", "the diagnosis is of the kernel as it stands"),
    Row("verify", ("patched",), "verified, or failed (already reverted)"),
    Row("benchmark", ("verified",), "benchmarked, or failed (already reverted)", "the very bytes that were verified"),
    Row("decide", ("benchmarked", "failed"), "ready (kept: profile again), diagnosed (reverted: next idea), or done"),
)

STOPPABLE: tuple[Phase, ...] = ("ready", "profiled", "diagnosed", "patched", "verified", "benchmarked", "failed")
"""Where `decide(stop=true)` may end an experiment early."""


def allowed(tool: Tool, phase: Phase, *, stop: bool = False) -> bool:
    """Whether the table lets `tool` run in `phase`."""
    if tool in ANYTIME:
        return True
    if tool == "decide" and stop:
        return phase in STOPPABLE
    return any(row.tool == tool and phase in row.allowed for row in TABLE)


def legal(phase: Phase) -> list[Tool]:
    """The tools that carry an experiment in `phase` on, the one that leads further first.

    Once it is done: where to read, and how to start anew.
    """
    if phase == "done":
        return ["log", "baseline"]
    tools = [row.tool for row in TABLE if phase in row.allowed]
    return tools[::-1] if phase == "diagnosed" else tools  # a patch is next; another profile may be wanted first


def markdown() -> str:
    """The table for the README."""
    lines = ["| tool | allowed when the experiment is | leads to |", "|---|---|---|"]
    lines.append(f"| {', '.join(f'`{tool}`' for tool in ANYTIME)} | anything | the same |")
    for row in TABLE:
        note = f" ({row.note})" if row.note else ""
        lines.append(f"| `{row.tool}` | {', '.join(row.allowed)}{note} | {row.leads_to} |")
    lines.append(f"| `decide` with `stop` | {', '.join(STOPPABLE)} | done |")
    return "\n".join(lines) + "\n"


class Iteration(Record):
    """One change and what became of it."""

    patch: PatchData
    bound: Bound | None = None
    """What the diagnosis said when the change was made."""
    verify: VerifyData | None = None
    benchmark: BenchmarkData | None = None
    decision: DecideData | None = None


class Experiment(Record):
    """One kernel on one device with one target, as its journal tells it."""

    id: str
    phase: Phase
    setup: BaselineData
    current: str
    """Hash of the kernel that belongs on disk."""
    previous: str
    """Hash that belonged there before the last event that changed it."""
    best: str
    base: str
    bests: tuple[str, ...]
    """Every version that was the best once, the baseline first."""
    measured: dict[str, Measurement]
    """By hash: the versions that were measured and not refused."""
    iterations: tuple[Iteration, ...] = ()
    profile: ProfileData | None = None
    diagnosis: DiagnoseData | None = None
    kept_since: int | None = None
    ended: Ending | None = None
    confirmed: bool | None = None
    overall: Ratio | None = None
    """The first kernel's time over the final one's, in turns in a cold process; None where that was not measured."""
    events: int = 0
    """How many events succeeded."""

    @property
    def open_iteration(self) -> Iteration | None:
        """The iteration that has not been decided."""
        last = self.iterations[-1] if self.iterations else None
        return last if last is not None and last.decision is None else None

    @property
    def hashes(self) -> frozenset[str]:
        """Every version of the kernel that the journal names."""
        return frozenset([self.setup.sha256, *(i.patch.sha256 for i in self.iterations)])


def fold(name: str, events: Iterable[Event], state: Experiment | None = None) -> Experiment | None:
    """Replay the events of experiment `name`, from `state` on; None while it has no baseline.

    Raises:
        JournalCorrupt: an event does not hold what its tool writes, or comes where it cannot.
    """
    for event in events:
        if event.outcome != "ok":
            continue
        try:
            state = _apply(name, state, event)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(str(part) for part in problem["loc"])
            raise JournalCorrupt(_unreadable(name, event, f"{where}: {problem['msg']}")) from error
    return state


def _apply(name: str, state: Experiment | None, event: Event) -> Experiment:
    if event.tool == "baseline":
        if state is not None:
            raise JournalCorrupt(_unreadable(name, event, "a second baseline"))
        return _baseline(name, BaselineData.model_validate(event.data))
    if state is None or event.tool not in _STEPS:
        raise JournalCorrupt(_unreadable(name, event, "no step can be here"))
    changed = _STEPS[event.tool](state, event)
    return changed.model_copy(update={"events": state.events + 1})


def _unreadable(name: str, event: Event, why: str) -> str:
    return (
        f"the journal of {name!r} cannot be replayed: event {event.n} ({event.tool}): {why}; it was written by another "
        "release or edited; restore experiments/ from version control, or start a new baseline."
    )


def _baseline(name: str, data: BaselineData) -> Experiment:
    return Experiment(
        id=name,
        phase="ready",
        setup=data,
        current=data.sha256,
        previous=data.sha256,
        best=data.sha256,
        base=data.sha256,
        bests=(data.sha256,),
        measured={data.sha256: data.measurement},
        events=1,
    )


def _profile(state: Experiment, event: Event) -> Experiment:
    data = ProfileData.model_validate(event.data)
    return state.model_copy(update={"phase": "profiled", "profile": data})


def _diagnose(state: Experiment, event: Event) -> Experiment:
    data = DiagnoseData.model_validate(event.data)
    return state.model_copy(update={"phase": "diagnosed", "diagnosis": data})


def _patch(state: Experiment, event: Event) -> Experiment:
    data = PatchData.model_validate(event.data)
    bound = state.diagnosis.diagnosis.bound if state.diagnosis else None
    iterations = (*state.iterations, Iteration(patch=data, bound=bound))
    return state.model_copy(
        update={"phase": "patched", "iterations": iterations, "previous": state.current, "current": data.sha256}
    )


def _verify(state: Experiment, event: Event) -> Experiment:
    data = VerifyData.model_validate(event.data)
    state = _with_last(state, verify=data)
    return state.model_copy(update={"phase": "verified"}) if data.evaluation.status == "PASSED" else _failed(state)


def _benchmark(state: Experiment, event: Event) -> Experiment:
    data = BenchmarkData.model_validate(event.data)
    state = _with_last(state, benchmark=data)
    if data.evaluation.status not in ("PASSED", "INCONCLUSIVE"):
        return _failed(state)
    measured = {**state.measured, data.sha256: data.measurement} if data.measurement else state.measured
    return state.model_copy(update={"phase": "benchmarked", "measured": measured})


def _decide(state: Experiment, event: Event) -> Experiment:
    data = DecideData.model_validate(event.data)
    if data.iteration is not None:
        state = _with_last(state, decision=data)
    return state.model_copy(
        update={
            "phase": _after(state, data),
            "previous": state.current,
            "current": data.sha256,
            "base": data.base,
            "best": data.best,
            "bests": state.bests if data.best in state.bests else (*state.bests, data.best),
            "kept_since": data.kept_since,
            "ended": data.ended,
            "confirmed": data.confirmed,
            "overall": next((c.evaluation.ratio for c in data.confirmations if c.sha256 == data.best), None),
        }
    )


def _after(state: Experiment, data: DecideData) -> Phase:
    if data.ended:
        return "done"
    # A diagnosis speaks of one version of the kernel; another version needs its own.
    still_true = state.diagnosis is not None and state.diagnosis.sha256 == data.sha256
    return "diagnosed" if still_true else "ready"


def _failed(state: Experiment) -> Experiment:
    return state.model_copy(update={"phase": "failed", "previous": state.current, "current": state.base})


def _with_last(state: Experiment, **update: Record) -> Experiment:
    if state.open_iteration is None:
        raise JournalCorrupt(f"the journal of {state.id!r} cannot be replayed: {', '.join(update)} without a patch.")
    last = state.iterations[-1].model_copy(update=update)
    return state.model_copy(update={"iterations": (*state.iterations[:-1], last)})


_STEPS: dict[Tool, Callable[[Experiment, Event], Experiment]] = {
    "profile": _profile,
    "diagnose": _diagnose,
    "apply_patch": _patch,
    "verify": _verify,
    "benchmark": _benchmark,
    "decide": _decide,
}
