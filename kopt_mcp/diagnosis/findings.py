"""What is worth acting on besides the bound: one rule a function, each with its threshold.

The order of `RULES` is the order of weight: what comes first explains what comes after it (a kernel that spills has a
low occupancy and waits for memory).
"""

from __future__ import annotations

from collections.abc import Callable

from kopt_mcp.diagnosis import access, arithmetic, scheduling
from kopt_mcp.diagnosis import thresholds as limits
from kopt_mcp.diagnosis.bound import Verdict
from kopt_mcp.diagnosis.found import Found, found
from kopt_mcp.diagnosis.signals import Signals
from kopt_mcp.models import Finding

NO_LAUNCH = ("cannot launch", "compile timed out")

Rule = Callable[[Signals, Verdict], Found | None]


def findings_of(signals: Signals, verdict: Verdict) -> list[Found]:
    """All findings, the weightiest first."""
    return [one for rule in RULES if (one := rule(signals, verdict))]


def foreign_kernels(signals: Signals, _: Verdict) -> Found | None:
    """Kernels of a library or the framework: no edit of the candidate's own kernels makes them faster."""
    foreign = [kernel for kernel in signals.profile.kernels if kernel.owner != "authored"]
    share = sum(kernel.share_pct for kernel in foreign)
    if not foreign or share < limits.FOREIGN_SHARE.value:
        return None
    name = "vendor-library" if any(kernel.owner == "vendor" for kernel in foreign) else "framework-kernels"
    shown = ", ".join(f"{kernel.name[:60]} ({kernel.owner}, {kernel.share_pct:.0f} %)" for kernel in foreign[:3])
    text = f"{share:.0f} % of the device time is not the candidate's own: {shown}."
    return found(name, 3, text, share, limits.FOREIGN_SHARE, metric="foreign_share_pct")


def many_kernels(signals: Signals, _: Verdict) -> Found | None:
    kernels = signals.profile.kernels
    if len(kernels) < 2 or kernels[0].share_pct >= limits.MAIN_SHARE.value:
        return None
    text = f"{len(kernels)} kernels share the time, the largest with {kernels[0].share_pct:.0f} %: fuse them."
    return found("many-kernels", 3, text, kernels[0].share_pct, limits.MAIN_SHARE, metric="share_pct")


def compiler_problem(signals: Signals, _: Verdict) -> Found | None:
    # What is merely slow has a rule of its own, which counters may contradict.
    problems = [text for kernel in signals.static for text in kernel.problems if text.startswith(NO_LAUNCH)]
    if not problems:
        return None
    return Found(Finding(name="compiler-problem", text=" ".join(problems), tier=1))


def not_vectorised(signals: Signals, _: Verdict) -> Found | None:
    """On a CPU the compiler's own report says which loop stayed scalar."""
    report = signals.facts.get("not_vectorized", "")
    return Found(Finding(name="not-vectorised", text=f"Scalar loops remain: {report}", tier=2)) if report else None


RULES: tuple[Rule, ...] = (
    compiler_problem,
    scheduling.launch_bound,
    scheduling.small_grid,
    scheduling.tail,
    scheduling.spills,
    arithmetic.unused_tensor_cores,
    access.redundant_traffic,
    access.uncoalesced,
    not_vectorised,
    access.narrow_access,
    access.bank_conflicts,
    arithmetic.fp64,
    arithmetic.special_functions,
    scheduling.low_occupancy,
    scheduling.imbalance,
    scheduling.top_stall,
    arithmetic.divergence,
    scheduling.odd_block,
    foreign_kernels,
    many_kernels,
)
