"""Concrete things to try, drawn from the table beside this file, and the skills that explain them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import yaml

from kopt_mcp.diagnosis.signals import Signals
from kopt_mcp.models import Idea, Platform, Record

TABLE = Path(__file__).with_name("ideas.yaml")
MOST_IDEAS = 8
GENERAL_SKILLS = ("optimize-loop", "profiling", "bottleneck-diagnosis", "verification", "benchmark")
TIER_SKILLS = {
    1: "tier1-block-tiling",
    2: "tier2-memory-access",
    3: "tier3-compute-fusion",
    4: "tier4-advanced-scheduling",
}
ARCH_SKILLS = {"nvidia": "tier5-arch-nvidia", "amd": "tier5-arch-amd-rocm"}


class Entry(Record):
    """One line of the table."""

    id: str
    tier: int
    text: str
    when: list[str]
    """Bounds and findings that call for it."""
    platforms: tuple[Platform, ...] = ("nvidia", "amd")
    language: str = ""
    """`triton`, `cuda` (CUDA or HIP C++), or empty for both."""
    min_sm: int = 0
    max_sm: int = 9999
    archs: tuple[str, ...] = ()
    """Prefixes of architectures; empty for all."""

    def fits(self, signals: Signals, is_triton: bool) -> bool:
        """Whether the device and the kernel's language can use it."""
        device = signals.device
        if device.platform not in self.platforms:
            return False
        if device.platform == "nvidia" and not self.min_sm <= signals.arch_number <= self.max_sm:
            return False
        if self.archs and not device.arch.startswith(self.archs):
            return False
        return device.platform == "cpu" or self.language in ("", "triton" if is_triton else "cuda")


@cache
def table() -> tuple[Entry, ...]:
    """All entries, in the order of trying."""
    tiers: dict[int, dict[str, dict[str, object]]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return tuple(
        Entry.model_validate({"id": name, "tier": tier, **entry})
        for tier, entries in tiers.items()
        for name, entry in entries.items()
    )


def ideas_for(
    signals: Signals,
    *,
    bound: str,
    findings: Sequence[str],
    tiers: Sequence[int],
    tried: Collection[tuple[int, str]],
    is_triton: bool,
) -> list[Idea]:
    """Ideas for the findings first, then for the bound; by tier, untried ones only, at most `MOST_IDEAS`."""
    fitting = [entry for entry in table() if entry.tier in tiers and entry.fits(signals, is_triton)]
    wanted = [
        entry for entry in fitting if {bound, *findings} & set(entry.when) and (entry.tier, entry.id) not in tried
    ]

    def urgency(entry: Entry) -> tuple[int, int]:
        named = min((findings.index(name) for name in entry.when if name in findings), default=len(findings))
        return named, tiers.index(entry.tier)

    return [
        Idea(id=entry.id, tier=entry.tier, text=entry.text, skill=skill_of(entry.tier, signals.device.platform))
        for entry in sorted(wanted, key=urgency)[:MOST_IDEAS]
    ]


def skill_of(tier: int, platform: Platform) -> str:
    """The skill that teaches a tier on a platform."""
    return TIER_SKILLS.get(tier) or ARCH_SKILLS[platform]


def uri(skill: str) -> str:
    """Where a client reads a skill."""
    return f"skill://{skill}/SKILL.md"


def all_skill_names() -> set[str]:
    """Every skill that a diagnosis can point to."""
    return {*GENERAL_SKILLS, *TIER_SKILLS.values(), *ARCH_SKILLS.values()}
