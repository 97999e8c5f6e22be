"""Where the time goes, as well as this machine lets anybody see it."""

from __future__ import annotations

from pathlib import Path

from kopt_mcp.arguments import check, shown
from kopt_mcp.errors import InputRefused
from kopt_mcp.evaluator.records import Timing, WorkloadInfo
from kopt_mcp.events import ProfileData
from kopt_mcp.models import Profile
from kopt_mcp.phases import Experiment, legal
from kopt_mcp.profiling import from_timing
from kopt_mcp.results import ProfileResult
from kopt_mcp.steps.call import Call, rounded, workloads

DEPTHS = ("quick", "full")
SHOWN = (
    "latency_us",
    "duration_us",
    "launch_us",
    "dram_pct",
    "dram_bytes",
    "l1_pct",
    "tensor_pct",
    "fma_pct",
    "occupancy_pct",
    "occupancy_theoretical_pct",
    "registers",
    "spill_bytes",
    "waves",
    "bytes_per_sector_load",
    "load_bytes",
    "ipc",
)
"""What is worth an agent's attention first; the rest is in metrics.json."""
STALLS_SHOWN = 2


def act(call: Call, workload: str | None, depth: str) -> ProfileData:
    """Profile the kernel as it stands.

    Raises:
        InputRefused: no such workload or depth.
        ToolUnavailable, EvaluatorFailed, DeviceBusy, Cancelled: there is no profile.
    """
    check(workload=workload, depth=depth)
    if depth not in DEPTHS:
        raise InputRefused(
            f"depth is {shown(depth)}; expected one of {', '.join(DEPTHS)}; quick is enough for a first look."
        )
    state = call.state
    info = _workload(state, workload)
    timing = last_timing(state, state.current, info.name)
    if state.setup.trust == "reported":
        why = "a script calls the kernel itself, and its calls cannot be told from its own work; see the kernel's skill"
        return ProfileData(sha256=state.current, profile=from_timing(info.name, timing, why))
    if call.tools.profile is None:
        return ProfileData(sha256=state.current, profile=from_timing(info.name, timing, "no profiler is configured"))
    device = call.device()
    path = call.candidates.path(state.current)
    call.candidates.load(state.current)
    with call.tools.locks.device(device.uuid, device.name, call.watch):
        begun = call.tools.clock()
        profile = call.tools.profile(
            device=device,
            job=call.subject(device).job("benchmark", path, state.current),
            workload=info,
            timing=timing,
            depth=depth,
            artifacts=path.parent.parent / "profiles",
            watch=call.watch,
        )
        held = (begun, call.tools.clock())
    relative = [call.tools.workspace.relative(Path(path)) for path in profile.artifacts]
    return ProfileData(sha256=state.current, profile=profile.model_copy(update={"artifacts": relative}), held=held)


def answer(state: Experiment, data: ProfileData) -> ProfileResult:
    """What the agent is told."""
    profile = data.profile
    return ProfileResult(
        experiment=state.id,
        phase=state.phase,
        next=tuple(legal(state.phase)),
        rung=profile.rung,
        why=profile.why,
        workload=profile.workload,
        metrics=_shown(profile),
        facts=profile.facts,
        kernels=tuple(f"{k.share_pct:.0f}% {k.name[:80]} x{k.calls} ({k.owner})" for k in profile.kernels[:8]),
        artifacts=tuple(profile.artifacts[:5]),
    )


def _shown(profile: Profile) -> dict[str, float | None]:
    """About a dozen numbers: those that decide, and the reasons for which warps wait most."""
    measured = {name: value for name, value in profile.metrics.items() if value is not None}
    stalls = sorted((name for name in measured if name.startswith("stall_")), key=lambda name: -measured[name])
    names = [name for name in SHOWN if name in measured] + stalls[:STALLS_SHOWN]
    return {name: rounded(measured[name]) for name in names}


def last_timing(state: Experiment, sha256: str, workload: str) -> Timing | None:
    """How long a workload took when a version of the kernel was benchmarked."""
    measured = state.measured.get(sha256)
    return measured.timings.get(workload) if measured else None


def _workload(state: Experiment, name: str | None) -> WorkloadInfo:
    timed = [w for w in workloads(state.setup) if w.timed]
    if name is None:
        return max(timed, key=lambda w: w.bytes + w.flops)
    for info in timed:
        if info.name == name:
            return info
    known = ", ".join(w.name for w in timed)
    raise InputRefused(f"workload {shown(name)} is not a timed one of this experiment; it has {known}; choose of them.")
