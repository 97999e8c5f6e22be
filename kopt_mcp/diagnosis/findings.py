"""What is worth acting on besides the bound: one rule a function, each with its threshold.

The order of `RULES` is the order of weight: what comes first explains what comes after it (a kernel that spills has a
low occupancy and waits for memory).
"""

from __future__ import annotations

from collections.abc import Callable

from kopt_mcp.diagnosis import scheduling
from kopt_mcp.diagnosis import thresholds as limits
from kopt_mcp.diagnosis.bound import Found, Verdict, found
from kopt_mcp.diagnosis.roofline import short_dtype
from kopt_mcp.diagnosis.signals import Signals
from kopt_mcp.models import Finding

NO_LAUNCH = ("cannot launch", "compile timed out")

Rule = Callable[[Signals, Verdict], Found | None]


def findings_of(signals: Signals, verdict: Verdict) -> list[Found]:
    """All findings, the weightiest first."""
    return [one for rule in RULES if (one := rule(signals, verdict))]


# Memory traffic: how much, how wide, how well aligned ---------------------------------------------------------------


def redundant_traffic(signals: Signals, _: Verdict) -> Found | None:
    times = signals.redundancy
    if times is None or times <= limits.REDUNDANCY:
        return None
    text = f"{times:.2f} times the bytes needed are moved: read each input once, and keep what is reused in cache."
    gain = 100 * (1 - 1 / times)
    return found("redundant-traffic", 2, text, times, limits.REDUNDANCY, metric="redundancy", gain=gain)


def uncoalesced(signals: Signals, _: Verdict) -> Found | None:
    name = "uncoalesced"
    used, kind = signals.sector_use or (32.0, "")
    if used < limits.BYTES_PER_SECTOR:
        text = f"Global {kind}s use {used:.1f} of every 32 bytes: let neighbouring lanes touch neighbouring bytes."
        metric, gain = f"bytes_per_sector_{kind}", 100 * (1 - used / 32)
        return found(name, 2, text, used, limits.BYTES_PER_SECTOR, metric=metric, gain=gain)
    share = signals.metrics.get("coalescing_pct")
    if share is None or share >= limits.COALESCING:
        return None
    text = f"Accesses are {share:.0f} % coalesced: let neighbouring lanes touch neighbouring bytes."
    return found(name, 2, text, share, limits.COALESCING, metric="coalescing_pct", gain=100 - share)


def narrow_access(signals: Signals, verdict: Verdict) -> Found | None:
    width = signals.metrics.get("load_bytes")
    if width is None or width <= 0 or width >= limits.NARROW_BYTES or verdict.bound in ("compute", "at_roof"):
        return None
    text = (
        f"One lane loads {width:.0f} bytes at a time of 16 possible: give it neighbouring elements and say they align."
    )
    return found("narrow-access", 2, text, width, limits.NARROW_BYTES, metric="load_bytes")


def bank_conflicts(signals: Signals, _: Verdict) -> Found | None:
    share = signals.metrics.get("bank_conflict_pct")
    if share is None or share < limits.BANK_CONFLICTS:
        return None
    busy = signals.metrics.get("l1_pct")
    gain = None if busy is None else share * busy / 100
    text = f"{share:.0f} % of shared memory accesses conflict: pad or swizzle the layout."
    return found("bank-conflicts", 2, text, share, limits.BANK_CONFLICTS, metric="bank_conflict_pct", gain=gain)


# Arithmetic: which pipes work, and on how many lanes ----------------------------------------------------------------


def unused_tensor_cores(signals: Signals, _: Verdict) -> Found | None:
    busy = signals.metrics.get("tensor_pct")
    if busy is None and not signals.counters and signals.static:
        busy = 0.0 if not any(kernel.mma for kernel in signals.static) else None
    if busy is None or busy >= limits.TENSOR_UNUSED or not signals.has_matrix_units:
        return None
    intensity = signals.flops / signals.bytes_needed if signals.bytes_needed else 0.0
    if intensity < limits.INTENSITY:
        return None
    name = short_dtype(signals.dtype)
    exact = " (as TF32, if the tolerance allows)" if name == "fp32" and signals.device.platform == "nvidia" else ""
    text = f"{intensity:.0f} operations a byte in {name}, and the matrix units idle: use a matrix instruction{exact}."
    return found("unused-tensor-cores", 3, text, busy, limits.TENSOR_UNUSED, metric="tensor_pct")


def fp64(signals: Signals, _: Verdict) -> Found | None:
    busy = signals.metrics.get("fp64_pct")
    if busy is None or busy <= limits.FP64 or short_dtype(signals.dtype) == "fp64":
        return None
    text = f"The fp64 pipe is {busy:.0f} % busy in a kernel of {short_dtype(signals.dtype)}: look for double constants."
    return found("fp64", 3, text, busy, limits.FP64, metric="fp64_pct")


def special_functions(signals: Signals, _: Verdict) -> Found | None:
    busy = signals.metrics.get("xu_pct")
    if busy is None or busy < limits.BUSY:
        return None
    text = f"The special-function pipe is {busy:.0f} % busy: fewer exponentials, divisions and conversions."
    return found("special-functions", 3, text, busy, limits.BUSY, metric="xu_pct")


def divergence(signals: Signals, _: Verdict) -> Found | None:
    lanes = signals.metrics.get("divergence_lanes")
    if lanes is None or lanes / signals.wave_lanes >= limits.DIVERGENCE:
        return None
    text = f"{lanes:.0f} of {signals.wave_lanes} lanes work in an average instruction: masks or branches idle the rest."
    return found("divergence", 3, text, lanes / signals.wave_lanes, limits.DIVERGENCE, metric="active_lane_share")


# What the compiler says, and whose kernels take the time ------------------------------------------------------------


def foreign_kernels(signals: Signals, _: Verdict) -> Found | None:
    """Kernels of a library or the framework: no edit of the candidate's own kernels makes them faster."""
    foreign = [kernel for kernel in signals.profile.kernels if kernel.owner != "authored"]
    share = sum(kernel.share_pct for kernel in foreign)
    if not foreign or share < limits.FOREIGN_SHARE:
        return None
    name = "vendor-library" if any(kernel.owner == "vendor" for kernel in foreign) else "framework-kernels"
    shown = ", ".join(f"{kernel.name[:60]} ({kernel.owner}, {kernel.share_pct:.0f} %)" for kernel in foreign[:3])
    text = f"{share:.0f} % of the device time is not the candidate's own: {shown}."
    return found(name, 3, text, share, limits.FOREIGN_SHARE, metric="foreign_share_pct")


def many_kernels(signals: Signals, _: Verdict) -> Found | None:
    kernels = signals.profile.kernels
    if len(kernels) < 2 or kernels[0].share_pct >= limits.MAIN_SHARE:
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
    unused_tensor_cores,
    redundant_traffic,
    uncoalesced,
    not_vectorised,
    narrow_access,
    bank_conflicts,
    fp64,
    special_functions,
    scheduling.low_occupancy,
    scheduling.imbalance,
    scheduling.top_stall,
    divergence,
    scheduling.odd_block,
    foreign_kernels,
    many_kernels,
)
