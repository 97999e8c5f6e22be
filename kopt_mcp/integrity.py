"""Whether experiments still say what was measured: each journal, its replay, the stored kernels and the problem."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kopt_mcp.errors import JournalCorrupt, WorkspaceFailed
from kopt_mcp.experiments import Experiments
from kopt_mcp.phases import Experiment
from kopt_mcp.workspace import Candidates, Workspace, problem_copies


@dataclass(frozen=True)
class Finding:
    """What an audit found out about one experiment."""

    experiment: str
    sound: bool
    text: str


def audit(root: Path, only: str | None = None) -> list[Finding]:
    """Look through the experiments of the project in `root`, or the one that is named.

    The chain of hashes shows an edit of any line but a rewrite of all that follow; keep the last line's hash elsewhere
    (a commit does) where that matters.
    """
    space = Workspace(root)
    experiments = Experiments(space)
    return [_one(experiments, space, name) for name in ([only] if only else experiments.names())]


def _one(experiments: Experiments, space: Workspace, name: str) -> Finding:
    if not experiments.has(name):
        known = ", ".join(experiments.names()) or "none"
        return Finding(name, False, f"there is no such experiment; there are: {known}")
    try:
        events = len(experiments.journal(name).read())
        state = experiments.replay(name)
        if state is None:
            return Finding(name, False, f"{events} events, and no baseline among them; nothing can be replayed")
        kept = _kernels(state, space)
    except (JournalCorrupt, WorkspaceFailed) as error:
        return Finding(name, False, str(error))
    return Finding(name, True, f"{events} events in an unbroken chain, replayed to {_end(state)}; {kept} kernels match")


def _kernels(state: Experiment, space: Workspace) -> int:
    """How many versions are stored; each is read and its hash compared, and what is kept of the problem as well."""
    candidates = Candidates(space, state.id, Path(state.setup.kernel).suffix)
    for sha256 in sorted(state.hashes):
        candidates.load(sha256)
    for path, sha256 in state.setup.problem_files.items():
        copies = problem_copies(space, state.id, path)
        if copies.path(sha256).is_file():  # an older experiment has none
            copies.load(sha256)
    return len(state.hashes)


def _end(state: Experiment) -> str:
    return state.ended or f"phase {state.phase}"
