"""The rules that may refuse a call, one function each, in the order in which they are asked. Pure.

Each gets facts that the loop has just read, and returns a sentence (fact; cause; next step) when it refuses.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from kopt_mcp.changes import Reading
from kopt_mcp.errors import GuardRefused
from kopt_mcp.features import Use
from kopt_mcp.models import Tool
from kopt_mcp.phases import Experiment, Iteration, allowed, legal


@dataclass(frozen=True)
class Proposal:
    """A change that is about to be made."""

    sha256: str
    normal: str
    """Hash of the program without comments and formatting."""
    shape: str
    """The same, whatever its variables are called."""
    reading: Reading
    foreign: tuple[Use, ...] = ()
    """What it newly uses and the device has not."""
    because: str | None = None
    """The agent's reason for making several changes at once."""


@dataclass(frozen=True)
class Facts:
    """What is so, at the moment of the call."""

    tool: Tool
    experiment: Experiment
    kernel_sha256: str | None
    """Of the file on disk; None when it is missing."""
    problem_files: dict[str, str | None] = field(default_factory=dict)
    """Hash of each of the problem's files as it is now; None when it is missing."""
    devices: Collection[str] | None = None
    """Ids of the machine's devices; None when the call uses none."""
    stop: bool = False
    adopt: bool = False
    """The call takes over what is on disk (`working_copy`)."""
    snapshot: str = ""
    """Where the version that belongs on disk is kept."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Where the baseline's version of each of the problem's files is kept, as far as it is."""
    proposal: Proposal | None = None


def one_change(facts: Facts) -> str | None:
    """One change an iteration, or nobody can say which of them helped."""
    iteration = facts.experiment.open_iteration
    if facts.tool != "apply_patch" or iteration is None:
        return None
    return (
        f"iteration {iteration.patch.iteration} already holds a change ({iteration.patch.hypothesis!r}); one change an "
        f"iteration, so that its effect can be told; {_call(facts)} first."
    )


def verified_first(facts: Facts) -> str | None:
    """Nothing is measured that has not been shown to be right, byte for byte."""
    iteration = facts.experiment.open_iteration
    if facts.tool != "benchmark" or iteration is None:
        return None
    if facts.experiment.phase == "patched":
        return (
            f"iteration {iteration.patch.iteration} has not been verified; a wrong kernel's speed means nothing; "
            "verify first."
        )
    if iteration.verify is not None and iteration.verify.sha256 != iteration.patch.sha256:
        return (
            f"version {short(iteration.verify.sha256)} was verified, but the iteration holds "
            f"{short(iteration.patch.sha256)}; verify first."
        )
    return None


def order(facts: Facts) -> str | None:
    """The table of phases."""
    state = facts.experiment
    if allowed(facts.tool, state.phase, stop=facts.stop):
        return None
    if state.phase == "done":
        return (
            f"experiment {state.id!r} is over ({state.ended}); {facts.tool} would change a finished log; call baseline "
            "for a new experiment, or log to read this one."
        )
    return f"{facts.tool} is not allowed while experiment {state.id!r} is {state.phase}; allowed now: {_call(facts)}."


def problem_untouched(facts: Facts) -> str | None:
    """The test, its reference and its tolerances are those of the baseline."""
    for path, before in facts.experiment.setup.problem_files.items():
        now = facts.problem_files.get(path)
        if facts.problem_files and now != before:
            what = f"is now {short(now)}" if now else "is gone"
            restore = _copy(facts.kept[path], path) if path in facts.kept else f"git checkout -- {shlex.quote(path)}"
            return (
                f"{path} was {short(before)} at the baseline and {what}; times against another problem cannot be "
                f"compared; restore it ({restore}), or call baseline for a new experiment."
            )
    return None


def candidate_untouched(facts: Facts) -> str | None:
    """The kernel on disk is the version that the journal says it is."""
    state = facts.experiment
    kernel = state.setup.kernel
    if facts.kernel_sha256 == state.current or facts.adopt:
        return None
    undo = f"undo it ({_copy(facts.snapshot, kernel)})"
    if allowed("apply_patch", state.phase):
        ways = f"adopt it with apply_patch(working_copy=true), {undo}"
    else:
        ways = f"keep a copy and {undo}, to bring it back with apply_patch(working_copy=true) when that is legal"
    return (
        f"{kernel} is {short(facts.kernel_sha256 or 'missing')}, expected {short(state.current)}; "
        f"it was edited outside the loop; {ways}, or call baseline for a new experiment."
    )


def same_device(facts: Facts) -> str | None:
    """Times of two devices are not compared."""
    device = facts.experiment.setup.device
    if facts.devices is None or device.uuid in facts.devices:
        return None
    return (
        f"the baseline ran on {device.name} ({device.uuid}), which this machine does not show now; times of another "
        "device cannot be compared; make it visible (CUDA_VISIBLE_DEVICES), or call baseline for a new experiment."
    )


def within_budget(facts: Facts) -> str | None:
    """The number of iterations was agreed on beforehand."""
    state = facts.experiment
    if facts.tool != "apply_patch" or len(state.iterations) < state.setup.max_iterations:
        return None
    return (
        f"all {state.setup.max_iterations} iterations of {state.id!r} are used; if five rounds did not help, the "
        "algorithm may have to change rather than its tuning; end it with decide(stop=true), or call baseline anew."
    )


def changes_something(facts: Facts) -> str | None:
    """A patch must change what the machine does."""
    if facts.proposal is None:
        return None
    state = facts.experiment
    if facts.proposal.sha256 == state.current:
        return "the patch leaves the kernel as it is; nothing to measure; send a change."
    normal, shape = _forms(state, state.current)
    if facts.proposal.normal == normal:
        return (
            "the patch changes only comments, docstrings or formatting; nothing to measure; send a change of the code."
        )
    if facts.proposal.shape == shape:
        return "the patch only renames variables; the same code comes out; send a change of what it does."
    return None


def not_a_repeat(facts: Facts) -> str | None:
    """What has failed once on this experiment is not tried again."""
    if facts.proposal is None:
        return None
    for iteration in facts.experiment.iterations:
        if _gave_nothing(iteration) and _same(facts.proposal, iteration):
            decision = iteration.decision
            outcome = decision.status if decision else "refused"
            looks = " with its variables renamed" if facts.proposal.normal != iteration.patch.normal else ""
            return (
                f"this is the kernel of iteration {iteration.patch.iteration} ({iteration.patch.hypothesis!r}){looks}, "
                f"which was {outcome}; to run it until chance is kind would prove nothing; try another idea (log shows "
                "all that was tried)."
            )
    return None


def platform_respected(facts: Facts) -> str | None:
    """What the device has not is not tried on it."""
    if facts.proposal is None or not facts.proposal.foreign:
        return None
    use, device = facts.proposal.foreign[0], facts.experiment.setup.device
    return (
        f"line {use.line} uses {use.feature.what}, which {device.name} ({device.arch}) has not: {use.feature.reason}; "
        "leave it out, or put it under a condition on the platform."
    )


def one_kind(facts: Facts) -> str | None:
    """One kind of change an iteration: of two, nobody can say which helped, and one can hide what the other cost."""
    proposal = facts.proposal
    if proposal is None or len(proposal.reading.parts) < 2 or proposal.because:
        return None
    parts = proposal.reading.parts
    split = "; ".join(f"({number}) {part.text()}" for number, part in enumerate(parts, start=1))
    return (
        f"the patch makes {len(parts)} changes at once: {split}; "
        "their effects could not be told apart; send one of them alone and the rest in later iterations, or give "
        "because, the reason why they only work together."
    )


RULES: tuple[Callable[[Facts], str | None], ...] = (
    one_change,
    verified_first,
    order,
    problem_untouched,
    candidate_untouched,
    same_device,
    within_budget,
    changes_something,
    not_a_repeat,
    platform_respected,
    one_kind,
)
"""Asked from the top: the rules on the order of calls first, as their answer saves the agent the most."""


def check(facts: Facts) -> None:
    """Ask every rule.

    Raises:
        GuardRefused: with the first refusal.
    """
    for rule in RULES:
        if text := rule(facts):
            raise GuardRefused(text)


def not_known(name: str, known: Collection[str]) -> str:
    """Experiment known: the refusal of a handle that names none; such a call creates nothing, not even a folder."""
    have = f"there are {', '.join(sorted(known)[:10])}" if known else "there is none yet"
    return f"experiment {name[:80]!r} is not known; {have}; call baseline to start one, or log for a list."


def too_fast(bytes_needed: float, latency_us: float, bandwidth_gbps: float | None, cache_bytes: int | None) -> bool:
    """Within physics: whether a time lies below 0.9 of what moving the bytes takes at the memory's bandwidth.

    Says nothing (False) where the data could sit in a cache, or the bandwidth is not known. The evaluator has its own,
    sharper check; this one is there so that no number gets into the journal past it.
    """
    mib_64 = 64 * 2**20  # a stated L2 may leave out the level behind it
    if bandwidth_gbps is None or bytes_needed < 4 * max(cache_bytes or 0, mib_64):
        return False
    return latency_us < 0.9 * bytes_needed / (bandwidth_gbps * 1e3)


def short(sha256: str) -> str:
    """The first twelve digits of a hash, as versions are named to the reader."""
    return sha256[:12]


def _copy(source: str, target: str) -> str:
    return f"cp {shlex.quote(source)} {shlex.quote(target)}"


def _call(facts: Facts) -> str:
    return " or ".join(legal(facts.experiment.phase))


def _forms(state: Experiment, sha256: str) -> tuple[str | None, str | None]:
    """The hashes of a version's program; None where its journal does not hold them."""
    known = {i.patch.sha256: (i.patch.normal, i.patch.shape) for i in state.iterations}
    return known.get(sha256, (state.setup.normal, state.setup.shape) if sha256 == state.setup.sha256 else (None, None))


def _gave_nothing(iteration: Iteration) -> bool:
    return iteration.decision is not None and iteration.decision.reverted


def _same(proposal: Proposal, iteration: Iteration) -> bool:
    patch = iteration.patch
    return proposal.sha256 == patch.sha256 or proposal.normal == patch.normal or proposal.shape == patch.shape
