"""Findings about memory traffic: how much, how wide, how well aligned."""

from __future__ import annotations

from kopt_mcp.diagnosis import thresholds as limits
from kopt_mcp.diagnosis.bound import Verdict
from kopt_mcp.diagnosis.found import Found, found
from kopt_mcp.diagnosis.signals import Signals


def redundant_traffic(signals: Signals, _: Verdict) -> Found | None:
    times = signals.redundancy
    if times is None or times <= limits.REDUNDANCY.value:
        return None
    text = f"{times:.2f} times the bytes needed are moved: read each input once, and keep what is reused in cache."
    return found(
        "redundant-traffic", 2, text, times, limits.REDUNDANCY, metric="redundancy", gain=100 * (1 - 1 / times)
    )


def uncoalesced(signals: Signals, _: Verdict) -> Found | None:
    name = "uncoalesced"
    used = {
        kind: signals.metrics[f"bytes_per_sector_{kind}"]
        for kind in ("load", "store")
        if f"bytes_per_sector_{kind}" in signals.metrics
    }
    worst = min(used, key=used.__getitem__, default="")
    if worst and used[worst] < limits.BYTES_PER_SECTOR.value:
        text = (
            f"Global {worst}s use {used[worst]:.1f} of every 32 bytes: let neighbouring lanes touch neighbouring bytes."
        )
        gain = 100 * (1 - used[worst] / 32)
        return found(name, 2, text, used[worst], limits.BYTES_PER_SECTOR, metric=f"bytes_per_sector_{worst}", gain=gain)
    share = signals.metrics.get("coalescing_pct")
    if share is None or share >= limits.COALESCING.value:
        return None
    text = f"Accesses are {share:.0f} % coalesced: let neighbouring lanes touch neighbouring bytes."
    return found(name, 2, text, share, limits.COALESCING, metric="coalescing_pct", gain=100 - share)


def narrow_access(signals: Signals, verdict: Verdict) -> Found | None:
    width = signals.metrics.get("load_bytes")
    if width is None or width <= 0 or width >= limits.NARROW_BYTES.value or verdict.bound in ("compute", "at_roof"):
        return None
    text = (
        f"One lane loads {width:.0f} bytes at a time of 16 possible: give it neighbouring elements and say they align."
    )
    return found("narrow-access", 2, text, width, limits.NARROW_BYTES, metric="load_bytes")


def bank_conflicts(signals: Signals, _: Verdict) -> Found | None:
    share = signals.metrics.get("bank_conflict_pct")
    if share is None or share < limits.BANK_CONFLICTS.value:
        return None
    busy = signals.metrics.get("l1_pct")
    gain = None if busy is None else share * busy / 100
    text = f"{share:.0f} % of shared memory accesses conflict: pad or swizzle the layout."
    return found("bank-conflicts", 2, text, share, limits.BANK_CONFLICTS, metric="bank_conflict_pct", gain=gain)
