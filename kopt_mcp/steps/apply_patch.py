"""The one change of an iteration: described in one of four ways, checked before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kopt_mcp import features, guards
from kopt_mcp.arguments import check, shown
from kopt_mcp.changes import off_tier, read
from kopt_mcp.disk import digest
from kopt_mcp.edit import Edit, apply_diff, apply_edits, changed_lines, pairs
from kopt_mcp.errors import InputRefused
from kopt_mcp.events import PatchData
from kopt_mcp.phases import Experiment, legal
from kopt_mcp.results import PatchResult
from kopt_mcp.source import normal_form, shape
from kopt_mcp.steps.call import Call, sentence
from kopt_mcp.workspace import LARGEST_BYTES, Candidates, Text, decode

Twin = Callable[[Experiment, str, str, str], Experiment | None]
Way = Literal["edits", "diff", "content", "working_copy"]


@dataclass(frozen=True)
class Patch:
    """What the agent asks for."""

    tier: int
    hypothesis: str
    edits: Sequence[Edit] | None = None
    diff: str | None = None
    content: str | None = None
    working_copy: bool = False
    idea: str | None = None
    because: str | None = None

    def way(self) -> Way:
        """Which of the four ways is used.

        Raises:
            InputRefused: none, or more than one.
        """
        ways: dict[Way, bool] = {
            "edits": self.edits is not None,
            "diff": self.diff is not None,
            "content": self.content is not None,
            "working_copy": self.working_copy,
        }
        used = [way for way, is_used in ways.items() if is_used]
        if len(used) != 1:
            what = f"{' and '.join(used)} are all given" if used else "none of them is given"
            raise InputRefused(f"a change comes as exactly one of {', '.join(ways)}; {what}; give one.")
        return used[0]


def act(call: Call, patch: Patch, twin: Twin) -> PatchData:
    """Work the new version out, check it, and keep it; the kernel file follows once the journal has the change.

    Args:
        twin: finds another experiment whose best version is this kernel, whole.

    Raises:
        InputRefused: the change cannot be carried out, or what comes out does not parse.
        GuardRefused: it changes nothing, too much at once or what the device has not, or was tried before.
    """
    check(
        **{f.name: getattr(patch, f.name) for f in dataclasses.fields(patch)},
    )
    if patch.tier not in range(1, 6):
        raise InputRefused(
            f"tier is {shown(patch.tier)}; expected 1 to 5; the diagnosis names the tiers in the order to try."
        )
    hypothesis = sentence(patch.hypothesis, "hypothesis", 300) or ""
    state, kernel = call.state, call.state.setup.kernel
    way = patch.way()
    old = decode(call.candidates.load(state.current), kernel)
    data = _proposed(call, patch, way, old)
    new = decode(data, kernel)
    if not new.body.strip():
        raise InputRefused(f"the patch leaves {kernel} empty; nothing changed; send the kernel as it is to be.")
    try:
        proposal = _proposal(call, patch, old.body, new.body, data)
    except RecursionError as error:
        raise InputRefused(f"{kernel} is nested too deeply to be read; nothing changed.") from error
    guards.check(dataclasses.replace(call.facts, proposal=proposal))
    added, removed = changed_lines(old.body, new.body)
    same = twin(state, proposal.sha256, proposal.normal, proposal.shape)
    call.notes += filter(None, (off_tier(patch.tier, proposal.reading), _copied(same)))
    return PatchData(
        iteration=len(state.iterations) + 1,
        tier=patch.tier,
        hypothesis=hypothesis,
        idea=sentence(patch.idea, "idea", 80),
        because=proposal.because,
        way=way,
        parent=state.current,
        sha256=call.candidates.store(data),
        normal=proposal.normal,
        shape=proposal.shape,
        kinds=proposal.reading.kinds,
        copied=same.id if same else "",
        added=added,
        removed=removed,
    )


def answer(state: Experiment, data: PatchData, candidates: Candidates) -> PatchResult:
    """What the agent is told."""
    return PatchResult(
        experiment=state.id,
        phase=state.phase,
        next=tuple(legal(state.phase)),
        iteration=data.iteration,
        iterations_left=state.setup.max_iterations - data.iteration,
        sha256=guards.short(data.sha256),
        parent=guards.short(data.parent),
        added=data.added,
        removed=data.removed,
        kinds=data.kinds,
        snapshot=candidates.shown(data.sha256),
    )


def _proposal(call: Call, patch: Patch, old: str, new: str, data: bytes) -> guards.Proposal:
    kernel, device = call.state.setup.kernel, call.state.setup.device
    return guards.Proposal(
        sha256=digest(data),
        normal=normal_form(new, kernel),
        shape=shape(new, kernel),
        reading=read(old, new, kernel),
        foreign=tuple(features.foreign(features.uses(old, kernel), features.uses(new, kernel), device)),
        because=sentence(patch.because, "because", 500),
    )


def _copied(same: Experiment | None) -> str:
    if same is None:
        return ""
    return (
        f"this is, whole, the best kernel of experiment {same.id!r}; the log says so; what it gains here shows nothing "
        "about the hypothesis alone."
    )


def _proposed(call: Call, patch: Patch, way: Way, old: Text) -> bytes:
    kernel = call.state.setup.kernel
    if way == "working_copy":
        return call.tools.workspace.read(call.tools.workspace.root / kernel)
    edits = pairs(patch.edits or ())
    given = "".join([patch.diff or "", patch.content or "", *(e.search + e.replace for e in edits)])
    if len(given) > 2 * LARGEST_BYTES:
        raise InputRefused(f"the change has {len(given)} characters; at most {2 * LARGEST_BYTES} are read; send less.")
    if way == "edits":
        body = apply_edits(old.body, edits)
    elif way == "diff":
        body = apply_diff(old.body, patch.diff or "", kernel)
    else:
        body = patch.content or ""
    try:
        return old.with_body(body).encode()
    except UnicodeEncodeError as error:
        raise InputRefused(f"the change holds a character that is no text ({error.reason}); remove it.") from error
