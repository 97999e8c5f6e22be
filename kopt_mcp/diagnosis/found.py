"""A finding together with the number that made it one."""

from __future__ import annotations

from dataclasses import dataclass

from kopt_mcp.diagnosis.bound import evidence
from kopt_mcp.diagnosis.signals import Signals
from kopt_mcp.diagnosis.thresholds import Threshold
from kopt_mcp.models import Evidence, Finding


@dataclass(frozen=True)
class Found:
    """A finding, and the number that made it one."""

    finding: Finding
    evidence: Evidence | None = None


def found(
    name: str, tier: int, text: str, value: float, threshold: Threshold, *, metric: str = "", gain: float | None = None
) -> Found:
    gain_pct = None if gain is None else round(max(0.0, gain), 1)
    finding = Finding(name=name, text=text, tier=tier, gain_pct=gain_pct)
    return Found(finding, evidence(metric or name, value, threshold))


def capped(signals: Signals, gain: float) -> float:
    """Better scheduling cannot gain more than what the busiest unit has left, in percent."""
    return gain if signals.busiest_pct is None else min(gain, 100 - signals.busiest_pct)
