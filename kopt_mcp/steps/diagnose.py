"""What limits the kernel, and which ideas are left to try."""

from __future__ import annotations

from kopt_mcp.events import DiagnoseData
from kopt_mcp.models import Diagnosis, Idea, Profile
from kopt_mcp.phases import Experiment, legal
from kopt_mcp.profiling import from_timing
from kopt_mcp.results import DiagnoseResult
from kopt_mcp.source import is_triton
from kopt_mcp.steps.call import Call, rounded, workloads
from kopt_mcp.steps.profile import last_timing
from kopt_mcp.workspace import decode


def act(call: Call) -> DiagnoseData:
    """Diagnose the kernel as it stands, from its profile or, without one, from its times."""
    return DiagnoseData(sha256=call.state.current, diagnosis=_of(call, call.state.current, failed_ideas(call.state)))


def exhausted(call: Call, tried: frozenset[tuple[int, str]]) -> bool:
    """Whether all that the diagnosis offers, and all that it would offer next, has been tried."""
    found = call.state.diagnosis
    if found is None or not tried or any((i.tier, i.id) not in tried for i in found.diagnosis.ideas):
        return False
    return not _of(call, found.sha256, tried).ideas


def _of(call: Call, sha256: str, tried: frozenset[tuple[int, str]]) -> Diagnosis:
    state = call.state
    profile = _profile(state, sha256)
    info = next(w for w in workloads(state.setup) if w.name == profile.workload)
    text = decode(call.candidates.load(sha256), state.setup.kernel).body
    diagnosis = call.tools.diagnose(
        profile,
        state.setup.device,
        bytes_needed=info.bytes,
        flops=info.flops,
        dtype=info.dtype,
        documented_bound=state.setup.problem.bound,
        static=profile.compiled,
        tried=tried,
        is_triton=is_triton(text),
    )
    return _without(diagnosis, tried)


def answer(state: Experiment, data: DiagnoseData) -> DiagnoseResult:
    """What the agent is told."""
    found = data.diagnosis
    return DiagnoseResult(
        experiment=state.id,
        phase=state.phase,
        # Where there is advice to stop, stopping is among the calls to make.
        next=(*legal(state.phase), *(("decide",) if found.stop else ())),
        bound=found.bound,
        summary=found.summary,
        evidence=tuple(found.evidence[:8]),
        findings=tuple(found.findings[:5]),
        tiers=tuple(found.tiers),
        ideas=tuple(found.ideas[:8]),
        read=tuple(found.read),
        headroom_pct=rounded(found.headroom_pct),
        stop=found.stop,
        source=found.source,
    )


def failed_ideas(state: Experiment) -> frozenset[tuple[int, str]]:
    """The (tier, idea) pairs that this experiment has tried in vain."""
    tried = [i.patch for i in state.iterations if i.decision is not None and i.decision.reverted]
    return frozenset((patch.tier, patch.idea) for patch in tried if patch.idea)


def left(ideas: list[Idea], state: Experiment) -> list[Idea]:
    """The ideas that are still worth a try."""
    tried = failed_ideas(state)
    return [idea for idea in ideas if (idea.tier, idea.id) not in tried]


def _without(diagnosis: Diagnosis, tried: frozenset[tuple[int, str]]) -> Diagnosis:
    ideas = [idea for idea in diagnosis.ideas if (idea.tier, idea.id) not in tried]
    if ideas or not tried or diagnosis.stop:
        return diagnosis.model_copy(update={"ideas": ideas})
    stop = "every idea for this bound has been tried; end with decide(stop=true), or bring an idea of your own."
    return diagnosis.model_copy(update={"ideas": ideas, "stop": stop})


def _profile(state: Experiment, sha256: str) -> Profile:
    if state.profile is not None and state.profile.sha256 == sha256:
        profile = state.profile.profile
        timing = last_timing(state, sha256, profile.workload)
        known = {"latency_us": timing.latency_us} if timing else {}
        # The profiler slows a kernel down; what the roof is compared with is the benchmark's time.
        return profile.model_copy(update={"metrics": {**profile.metrics, **known}})
    largest = max((w for w in workloads(state.setup) if w.timed), key=lambda w: w.bytes + w.flops)
    return from_timing(largest.name, last_timing(state, sha256, largest.name), "this version was not profiled")
