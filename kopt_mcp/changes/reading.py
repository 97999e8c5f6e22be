"""From two versions of a kernel to the kinds of change between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kopt_mcp.changes import cpp, python
from kopt_mcp.changes.sites import WORDS, Part, parts
from kopt_mcp.models import ChangeKind

TIERS: Mapping[ChangeKind, tuple[int, ...]] = {
    "launch": (1, 4, 5),
    "memory": (2, 4, 5),
    "algorithm": (3, 1, 2, 4, 5),  # also what is left when nothing tells
    "numerics": (3, 5),
    "scheduling": (4, 1, 2, 3, 5),
    "arch": (5, 2, 3, 4),
}
"""The tiers under which a kind of change may be filed, its own first."""
LARGEST_LINES = 20_000
"""Beyond this many lines a comparison would take too long; nothing is read then, and nothing refused."""


@dataclass(frozen=True)
class Reading:
    """What a patch was read as."""

    parts: tuple[Part, ...]
    """The independent changes; none where nothing could be told."""

    @property
    def kinds(self) -> tuple[ChangeKind, ...]:
        """Their kinds, the strongest first."""
        return tuple(part.kind for part in self.parts)


def read(old: str, new: str, name: str) -> Reading:
    """Read the change from `old` to `new`, two texts of the kernel file `name`.

    Raises:
        InputRefused: a Python file does not parse.
    """
    if max(old.count("\n"), new.count("\n")) > LARGEST_LINES:
        return Reading(())
    return Reading(parts(*(python if name.endswith(".py") else cpp).compare(old, new, name)))


def off_tier(tier: int, reading: Reading) -> str:
    """A warning where a patch is filed under a tier that none of its kinds belongs to; empty where it fits."""
    if not reading.parts or any(tier in TIERS[kind] for kind in reading.kinds):
        return ""
    part = reading.parts[0]
    return (
        f"filed under tier {tier}, but read as {WORDS[part.kind]} ({', '.join(part.places[:2])}), which is tier "
        f"{TIERS[part.kind][0]}; name the tier of what is changed, so that the log says what was tried."
    )
