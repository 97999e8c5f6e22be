"""Bound, findings, tiers, ideas, reading, headroom: the whole diagnosis from its parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kopt_mcp.diagnosis.bound import Documented, Verdict, classify
from kopt_mcp.diagnosis.findings import findings_of
from kopt_mcp.diagnosis.ideas import ideas_for, skill_of, uri
from kopt_mcp.diagnosis.signals import Signals, with_compiled
from kopt_mcp.diagnosis.thresholds import STOP
from kopt_mcp.models import Device, Diagnosis, Finding, Idea, Profile, StaticKernel

TIERS: dict[str, tuple[int, ...]] = {
    "memory": (2, 1, 3),
    "compute": (3, 1, 5),
    "latency": (4, 3),
    "balanced": (3, 1, 2),
    "at_roof": (3, 2),
    "unclear": (1, 2, 3),
}
COMPUTE_ROOF_TIERS = (3, 5)

# Which findings change the order for which bound: those that name a cause of it.
ALWAYS = ("compiler-problem", "spills")
LEADS: dict[str, tuple[str, ...]] = {
    "memory": (*ALWAYS, "unused-tensor-cores", "redundant-traffic", "uncoalesced", "narrow-access"),
    "compute": (*ALWAYS, "unused-tensor-cores", "fp64", "special-functions", "bank-conflicts"),
    "latency": (
        *(*ALWAYS, "launch-bound", "small-grid", "tail", "unused-tensor-cores", "uncoalesced", "bank-conflicts"),
        *("low-occupancy", "stall-"),
    ),
    "balanced": (*ALWAYS, "unused-tensor-cores", "redundant-traffic", "uncoalesced"),
    "unclear": (*ALWAYS, "small-grid"),
    "at_roof": (),
}
SAFE_TIER = 1
"""Autotuning: right whatever the cause is, so first where the cause is a guess."""
CPU_TIERS = (1, 2, 3, 4)


def diagnose(
    profile: Profile,
    device: Device,
    *,
    bytes_needed: float,
    flops: float,
    dtype: str,
    documented_bound: Documented | None,
    static: Sequence[StaticKernel] = (),
    tried: Collection[tuple[int, str]] = (),
    is_triton: bool = True,
) -> Diagnosis:
    """What limits one workload of a candidate, and what to try next. Pure: equal inputs give equal answers.

    Args:
        profile: counters, kernel times or the time alone (`duration_us`); a benchmark's `latency_us` among its metrics
            is what the roof is compared with.
        device: with its measured rates, else its nominal ones.
        bytes_needed: bytes that any implementation moves.
        flops: operations that the problem needs.
        dtype: of the operands, `bfloat16` or `bf16`.
        documented_bound: `memory`, `compute` or `latency` as the problem states it; used where nothing was counted.
        static: what the compiler says of the launched kernels.
        tried: `(tier, id)` of ideas that were tried and reverted; they are not offered again.
        is_triton: whether the kernel is Triton rather than CUDA or HIP C++.
    """
    signals = Signals(with_compiled(profile, static), device, static, bytes_needed, flops, dtype)
    verdict = classify(signals, documented_bound)
    found = findings_of(signals, verdict)
    findings = [one.finding for one in found]
    tiers = _tiers(signals, verdict, findings, documented_bound)
    ideas = ideas_for(
        signals,
        bound=verdict.bound,
        findings=[finding.name for finding in findings],
        tiers=tiers,
        tried=tried,
        is_triton=is_triton,
    )
    stop = _stop(signals)
    return Diagnosis(
        bound=verdict.bound,
        summary=_summary(signals, verdict, findings, ideas),
        evidence=list(dict.fromkeys([*verdict.evidence, *(one.evidence for one in found if one.evidence)])),
        findings=findings,
        tiers=tiers,
        ideas=ideas,
        read=_read(signals, verdict, tiers, ideas, stop),
        headroom_pct=_headroom(signals),
        stop=stop,
        source=_source(signals),
    )


def _tiers(signals: Signals, verdict: Verdict, findings: Sequence[Finding], documented: Documented | None) -> list[int]:
    """The bound's own order, the weightiest cause first, the other findings' tiers last."""
    bound = documented if verdict.bound == "unclear" and documented else verdict.bound
    base = COMPUTE_ROOF_TIERS if verdict.side == "compute" else TIERS[bound]
    lead = [finding.tier for finding in findings if finding.name.startswith(LEADS[verdict.bound])]
    rest = [finding.tier for finding in findings] if verdict.bound != "at_roof" else []
    safe = [] if signals.counters else [SAFE_TIER]
    order = dict.fromkeys([*safe, *lead[:1], *base, *rest])
    return [tier for tier in order if signals.device.platform != "cpu" or tier in CPU_TIERS]


def _headroom(signals: Signals) -> float | None:
    """How much faster the call would be at its roof, in percent of its speed now."""
    pct = signals.roof_pct
    return None if not pct else round(max(0.0, 100 * (100 / pct - 1)), 1)


def _stop(signals: Signals) -> str:
    limit, pct = signals.roof.limit, signals.roof_pct
    if limit is None or pct is None or not pct >= STOP:
        return ""
    return f"{min(pct, 100):.0f} % of the {limit.what}: what is left is under the noise floor of a benchmark."


def _summary(signals: Signals, verdict: Verdict, findings: Sequence[Finding], ideas: Sequence[Idea]) -> str:
    sentences = [f"{verdict.bound}: {verdict.why}."]
    headroom = _headroom(signals)
    if signals.roof.limit and verdict.bound != "unclear" and headroom and not _stop(signals):
        gain = f"{1 + headroom / 100:.1f} times as fast" if headroom >= 100 else f"{headroom:.0f} % faster"
        sentences.append(f"At the {signals.roof.limit.what} it would be {gain}.")
    if findings:
        sentences.append("Seen besides: " + ", ".join(finding.name for finding in findings[:5]) + ".")
    if signals.device.throttle:
        sentences.append(
            f"The clock was lowered ({', '.join(signals.device.throttle)}): measure again before deciding."
        )
    if not signals.counters:
        sentences.append(f"No counters ({signals.profile.rung}): tier 1 comes first, since tuning is always safe.")
        if ideas and ideas[0].tier != SAFE_TIER:
            sentences.append("Ideas for what was seen come before that.")
    return " ".join(sentences)


def _read(signals: Signals, verdict: Verdict, tiers: Sequence[int], ideas: Sequence[Idea], stop: str) -> list[str]:
    """The skill of the first idea and of the first tier; what to do about the measurement comes before both."""
    if stop:
        return [uri("optimize-loop")]
    general = ["bottleneck-diagnosis"] if verdict.bound == "unclear" else []
    skills = [skill_of(tier, signals.device.platform) for tier in tiers[:1]] + [idea.skill for idea in ideas[:1]]
    return [uri(skill) for skill in dict.fromkeys(general + skills)]


def _source(signals: Signals) -> str:
    if signals.counters:
        return "counters"
    return "static" if signals.static or signals.profile.rung == "static" else "analytic"
