"""What a report tells, read from one experiment's journal and from the versions of its kernel that were kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kopt_mcp.disk import digest
from kopt_mcp.errors import GuardRefused, WorkspaceFailed
from kopt_mcp.evaluator.records import Ratio
from kopt_mcp.events import DiagnoseData, Event, Measurement, ProfileData
from kopt_mcp.experiments import Experiments
from kopt_mcp.guards import not_known
from kopt_mcp.models import Metric
from kopt_mcp.phases import Experiment, Iteration, fold
from kopt_mcp.report.diffs import Change, change
from kopt_mcp.stats import UNKNOWN_HIGH
from kopt_mcp.workspace import Candidates, Workspace

Fate = Literal["baseline", "kept", "reverted", "failed", "open"]
GOOD = ("PASSED", "INCONCLUSIVE")


@dataclass(frozen=True)
class Try:
    """One iteration as the progress chart shows it."""

    iteration: int
    fate: Fate
    value: float | None
    """In the experiment's metric; None where no time may be believed."""
    low: float | None = None
    """The worse end of the 95 % interval of the ratio to the incumbent, carried over to the value."""
    high: float | None = None
    gain_pct: float | None = None
    tier: int | None = None
    kinds: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Diagnosed:
    """A diagnosis, the profile that it rests on, and the iterations that were tried while it stood."""

    number: int
    made: DiagnoseData
    profile: ProfileData | None
    iterations: tuple[int, ...]


@dataclass(frozen=True)
class Told:
    """One experiment, with all that a page says of it."""

    state: Experiment
    events: tuple[Event, ...]
    tries: tuple[Try, ...]
    diagnoses: tuple[Diagnosed, ...]
    changes: dict[int, Change]
    """By iteration: what the patch changed."""
    head: str
    """Hash of the journal's last line: as every line holds that of the one before, it vouches for all of them."""

    @property
    def refusals(self) -> tuple[Event, ...]:
        """The calls that a rule forbade or that broke."""
        return tuple(event for event in self.events if event.outcome != "ok")


def named(root: Path, name: str | None) -> str:
    """The experiment that is meant: the one named, or the one whose journal grew last.

    Raises:
        GuardRefused: there is none, or none of that name.
    """
    experiments = Experiments(Workspace(root))
    names = experiments.names()
    if name is None and names:
        return max(names, key=lambda each: experiments.journal(each).path.stat().st_mtime_ns)
    if name is None:
        raise GuardRefused(f"{root} has no experiment; nothing was begun there; call baseline, or give --root.")
    if name not in names:
        raise GuardRefused(not_known(name, names))
    return name


def read(root: Path, name: str) -> Told:
    """All that a page says of experiment `name` of the project at `root`.

    Raises:
        GuardRefused: there is no such experiment.
        JournalCorrupt: its journal does not verify.
    """
    workspace = Workspace(root)
    experiments = Experiments(workspace)
    journal = experiments.journal(name)
    events = tuple(journal.read()) if experiments.has(name) else ()
    state = fold(name, events)
    if state is None:
        raise GuardRefused(not_known(name, experiments.names()))
    candidates = Candidates(workspace, name, Path(state.setup.kernel).suffix)
    return Told(
        state=state,
        events=events,
        tries=tuple(tries(state)),
        diagnoses=tuple(diagnoses(events)),
        changes={i.patch.iteration: _change(candidates, i) for i in state.iterations},
        head=digest(journal.path.read_bytes().split(b"\n")[len(events) - 1]),
    )


def tries(state: Experiment) -> Iterator[Try]:
    """The baseline and every iteration, in order."""
    setup = state.setup
    low, high = interval(setup.target_metric, setup.measurement.value, setup.evaluation.ratio)
    yield Try(0, "baseline", setup.measurement.value, low, high)
    for iteration in state.iterations:
        yield _try(setup.target_metric, iteration)


def interval(metric: Metric, value: float, ratio: Ratio | None) -> tuple[float | None, float | None]:
    """The ratio's 95 % interval carried over to the value, worse end first; (None, None) where it is not known.

    A time is divided by the ratio and a rate multiplied by it, so that low / ratio.value scales either.
    """
    if ratio is None or ratio.low <= 0 or ratio.value <= 0 or ratio.high >= UNKNOWN_HIGH:
        return None, None
    worse, better = ratio.low / ratio.value, ratio.high / ratio.value
    return (value / worse, value / better) if metric == "latency_us" else (value * worse, value * better)


def diagnoses(events: Iterable[Event]) -> Iterator[Diagnosed]:
    """Every diagnosis with the iterations that followed it, until the next."""
    profile: ProfileData | None = None
    last: DiagnoseData | None = None
    rests_on: ProfileData | None = None
    number, tried = 0, list[int]()
    for event in (e for e in events if e.outcome == "ok"):
        if event.tool == "profile":
            profile = ProfileData.model_validate(event.data)
        elif event.tool == "apply_patch":
            tried.append(int(event.data["iteration"]))
        elif event.tool == "diagnose":
            if last is not None:
                yield Diagnosed(number, last, rests_on, tuple(tried))
            last = DiagnoseData.model_validate(event.data)
            rests_on = profile if profile is not None and profile.sha256 == last.sha256 else None
            number, tried = number + 1, []
    if last is not None:
        yield Diagnosed(number, last, rests_on, tuple(tried))


def headline(state: Experiment) -> str:
    """How the experiment stands, in a few words; a target is only called met when a cold process agreed."""
    if state.ended is None:
        return f"Running: {state.phase}"
    if not state.confirmed:
        return "Not confirmed in a cold process, nothing is claimed"
    if state.ended == "TARGET_MET":
        return "Target met, confirmed in a cold process"
    ends = {"MAX_ITERATIONS": "iterations used up", "TIERS_EXHAUSTED": "ideas used up", "STOPPED": "stopped"}
    return f"Target not met ({ends[state.ended]}), best version confirmed in a cold process"


def counted(tries_: Sequence[Try]) -> str:
    """`2 kept, 1 reverted, 1 wrong or refused`."""
    words = {"kept": "kept", "reverted": "taken back", "failed": "failed", "open": "open"}
    numbers = {fate: sum(t.fate == fate for t in tries_) for fate in words}
    return ", ".join(f"{n} {words[fate]}" for fate, n in numbers.items() if n) or "none yet"


def how_taken(state: Experiment) -> str:
    """How the times of an experiment came about, in a few words."""
    if state.setup.trust == "reported":
        return "as the project's own script reported them"
    words = {"l2_cold": "caches cold", "l2_warm": "caches warm"}
    seen = dict.fromkeys(timing.cache for timing in state.setup.measurement.timings.values())
    return ", ".join(words.get(cache, f"caches {cache}") for cache in seen)


def best(state: Experiment) -> Measurement:
    """How fast the best version was."""
    return state.measured[state.best]


def _try(metric: Metric, iteration: Iteration) -> Try:
    patch, decision, timed = iteration.patch, iteration.decision, iteration.benchmark
    statuses = [done.evaluation.status for done in (iteration.verify, timed) if done is not None]
    failed = next((status for status in statuses if status not in GOOD), None)
    believed = timed.measurement.value if timed and timed.measurement and failed is None else None
    ratio = timed.evaluation.ratio if timed and failed is None else None
    low, high = interval(metric, believed, ratio) if believed else (None, None)
    fate: Fate = "open"
    if decision is not None and decision.status is not None:
        fate = "failed" if failed or decision.status == "FAILED" else "reverted" if decision.reverted else "kept"
    return Try(
        iteration=patch.iteration,
        fate="failed" if failed else fate,
        value=believed,
        low=low,
        high=high,
        gain_pct=100 * (ratio.value - 1) if ratio else None,
        tier=patch.tier,
        kinds=patch.kinds,
        why=failed or "",
    )


def _change(candidates: Candidates, iteration: Iteration) -> Change:
    patch = iteration.patch
    try:
        before, after = candidates.load(patch.parent), candidates.load(patch.sha256)
    except WorkspaceFailed as error:
        return Change((), str(error))
    return change(before.decode(errors="replace"), after.decode(errors="replace"))
