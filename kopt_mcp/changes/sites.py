"""Places that a patch changes, and how many independent changes they add up to. Pure."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kopt_mcp.arguments import cut
from kopt_mcp.models import ChangeKind

STRENGTH: tuple[ChangeKind, ...] = ("arch", "algorithm", "scheduling", "numerics", "memory", "launch")
"""What belongs together is named after the first of these in it."""
BRINGS: Mapping[ChangeKind, frozenset[ChangeKind]] = {
    "arch": frozenset(STRENGTH),
    "algorithm": frozenset(STRENGTH) - {"arch"},
    "scheduling": frozenset(["launch", "memory"]),
    "numerics": frozenset(),
    "memory": frozenset(),
    "launch": frozenset(),
}
"""What a kind naturally brings with it in the same kernel: a new algorithm has its own loads, types and tiles."""
WORDS: Mapping[ChangeKind, str] = {
    "launch": "launch parameters",
    "memory": "memory access",
    "algorithm": "algorithm",
    "numerics": "numerics",
    "scheduling": "scheduling",
    "arch": "features of the architecture",
}


@dataclass(frozen=True)
class Site:
    """One place that differs."""

    kind: ChangeKind | None
    """None where it only carries what another place needs: an argument handed on, an import, a buffer."""
    what: str
    function: str
    line: int
    """In the new text; in the old one where something was taken out."""
    names: frozenset[str] = frozenset()
    """Names that appear in what differs."""
    near: str = ""
    """The function that a place outside all functions belongs with."""

    def text(self) -> str:
        """As it is shown: `num_warps in softmax (line 29)`."""
        return f"{self.what} in {self.function or 'the module'} (line {self.line})"


@dataclass(frozen=True)
class Part:
    """One of the independent changes."""

    kind: ChangeKind
    places: tuple[str, ...]

    def text(self) -> str:
        """As it is shown: its kind, and the first places."""
        more = f" and {len(self.places) - 2} more" if len(self.places) > 2 else ""
        return f"{WORDS[self.kind]}: {', '.join(self.places[:2])}{more}"


def parts(sites: Sequence[Site], fresh: frozenset[str], calls: Mapping[str, frozenset[str]]) -> tuple[Part, ...]:
    """The independent kinds of change, the strongest first.

    Places are one change where a name ties them that the patch brings in or drops, or where one brings the other in
    the same region: functions that work together (a kernel, its helpers, and who launches it).

    Args:
        fresh: names that only one of the two texts has.
        calls: by function, the names that it mentions; the module itself is "".
    """
    regions = _regions(calls)
    sites = [_placed(site, calls) for site in sites]
    found: dict[ChangeKind, list[Site]] = {}
    for region in sorted({_region(site, regions) for site in sites}):
        here = [site for site in sites if _region(site, regions) == region]
        groups = [g for g in _tied(here, fresh) if any(site.kind for site in g)]
        kinds = {_strongest(group) for group in groups}
        for group in groups:
            kind = _strongest(group)
            chief = next((k for k in STRENGTH if k in kinds and kind in BRINGS[k] and k != kind), kind)
            found.setdefault(chief, []).extend(site for site in group if site.kind == kind)
    chosen: list[Part] = []
    for kind in sorted(found, key=STRENGTH.index):
        told = [site for site in found[kind] if site.kind == kind] or found[kind]
        chosen.append(Part(kind, tuple(dict.fromkeys(site.text() for site in told))))
    return tuple(chosen)


def _region(site: Site, regions: Mapping[str, int]) -> int:
    return regions.get(site.near or site.function, -1)


def _strongest(group: Iterable[Site]) -> ChangeKind:
    kinds = {site.kind for site in group}
    return next(kind for kind in STRENGTH if kind in kinds)


def _tied(sites: Sequence[Site], fresh: frozenset[str]) -> list[list[Site]]:
    """Groups of places that share a fresh name, directly or through others."""
    groups: list[tuple[set[str], list[Site]]] = []
    for site in sites:
        names, members = set(site.names & fresh), [site]
        for other in [g for g in groups if g[0] & names]:
            groups.remove(other)
            names |= other[0]
            members = [*other[1], *members]
        groups.append((names, members))
    return [members for _, members in groups]


def _placed(site: Site, calls: Mapping[str, frozenset[str]]) -> Site:
    """What stands outside of all functions belongs with the first one that uses it."""
    if site.function:
        return site
    return replace(site, near=next((name for name, used in calls.items() if name and site.names & used), site.near))


def _regions(calls: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Which functions work together: those that name one another, directly or through others."""
    number = {name: at for at, name in enumerate(calls)}
    for name, mentioned in calls.items():
        for other in mentioned:
            if other in number and name and other:
                low, high = sorted((number[name], number[other]))
                number = {k: low if v == high else v for k, v in number.items()}
    return number


Line = TypeVar("Line")


def differences(
    old: Sequence[Line], new: Sequence[Line], key: Callable[[Line], str], alike: Callable[[Line, Line], bool]
) -> Iterator[tuple[Line | None, Line | None]]:
    """Lines that differ: versions of one another first, then what is new, then what was dropped.

    One side is None where the other has no counterpart; a line that only moved is handed out twice, as itself.
    """
    gone: list[Line] = []
    come: list[Line] = []
    for i1, i2, j1, j2 in unequal([key(line) for line in old], [key(line) for line in new]):
        rest = list(old[i1:i2])
        for line in new[j1:j2]:
            match = next((one for one in rest if alike(one, line)), None)
            if match is None:
                come.append(line)
            else:
                rest.remove(match)
                yield match, line
        gone += rest
    stays = Counter(map(key, gone)) & Counter(map(key, come))
    yield from ((line if stays[key(line)] else None, line) for line in come)
    yield from ((line, None) for line in gone if not stays[key(line)])


def unequal(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Where two sequences differ: begin and end of each stretch, in the old one and in the new one."""
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in codes if tag != "equal"]


def shown(text: str) -> str:
    """On one line, cut to what fits a message."""
    return cut(" ".join(text.split()), 40)
