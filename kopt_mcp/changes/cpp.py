"""Where two versions of a C, C++, CUDA or HIP file differ, line by line, and what kind of change that is. Pure."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kopt_mcp import csource, features
from kopt_mcp.changes import words
from kopt_mcp.changes.sites import Site, regions_of
from kopt_mcp.models import ChangeKind

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)?=(?!=)")
DEFINED = re.compile(r"#\s*define\s+(\w+)")
FILLER = re.compile(
    r"(?:[{}();]|else|break;|continue;|return[^;]*;|extern \"C\"|namespace.*|using .*|#\s*include.*|//.*)+"
)
HANDED_ON = re.compile(r"(?=.*,)[\w\s,*&]+")
"""Words and commas: parameters and arguments, which carry what another place needs."""
LOOSE = frozenset(["float", "double", "half", "__half", "__nv_bfloat16", "hip_bfloat16", "half2", "fmaxf", "fmax"])
CODES: tuple[tuple[re.Pattern[str], ChangeKind], ...] = (
    (words.LAUNCH_CODE, "launch"),
    (words.SCHEDULING_CODE, "scheduling"),
    (words.NUMERIC_CODE, "numerics"),
    (words.MEMORY_CODE, "memory"),
)


@dataclass(frozen=True)
class Line:
    """A line of code, and the function that it is in."""

    text: str
    number: int
    function: str


def compare(old: str, new: str, name: str) -> tuple[list[Site], frozenset[str], dict[str, int]]:
    """(places that differ, names that only one version has, regions by function)."""
    before, after = _lines(old), _lines(new)
    matcher = difflib.SequenceMatcher(None, [_key(x) for x in before], [_key(x) for x in after], autojunk=False)
    sites: list[Site] = []
    gone: list[Line] = []
    come: list[Line] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        pairs, only_old, only_new = _paired(before[i1:i2], after[j1:j2])
        sites += [_changed(one, other) for one, other in pairs]
        gone += only_old
        come += only_new
    calls = _calls([*before, *after])
    sites += _moved(gone, come)
    fresh = _names(before) ^ _names(after)
    return [_near(site, calls) for site in sites], frozenset(fresh), regions_of(calls)


def _lines(text: str) -> list[Line]:
    owner = csource.functions(text)
    return [Line(line, number, owner.get(number, "")) for number, line in csource.code_lines(text)]


def _key(line: Line) -> str:
    return line.text.replace(" ", "")


def _names(lines: Sequence[Line]) -> set[str]:
    return {name for line in lines for name in NAME.findall(line.text)}


def _calls(lines: Sequence[Line]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {"": set()}
    for line in lines:
        found.setdefault(line.function, set()).update(NAME.findall(line.text))
    return {function: frozenset(mentioned) for function, mentioned in found.items()}


def _paired(old: Sequence[Line], new: Sequence[Line]) -> tuple[list[tuple[Line, Line]], list[Line], list[Line]]:
    """Lines that are versions of one another, in order; then what is left of either side."""
    pairs: list[tuple[Line, Line]] = []
    rest = list(old)
    only_new: list[Line] = []
    for line in new:
        match = next((o for o in rest if _alike(o.text, line.text)), None)
        if match is None:
            only_new.append(line)
        else:
            pairs.append((match, line))
            rest.remove(match)
    return pairs, rest, only_new


def _alike(one: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, _words(one), _words(other), autojunk=False).ratio() > 0.6


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\S", text)


def _changed(old: Line, new: Line) -> Site:
    """A line that was edited, judged by the words that differ before the words around them."""
    one, other = _words(old.text), _words(new.text)
    codes = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    cut = " ".join(w for tag, i1, i2, _, _ in codes if tag != "equal" for w in one[i1:i2])
    put = " ".join(w for tag, _, _, j1, j2 in codes if tag != "equal" for w in other[j1:j2])
    names = frozenset(NAME.findall(f"{cut} {put}"))
    kind, what = _kind(f"{cut} {put}", names, new.text)
    return Site(kind, what, new.function, new.number, names)


def _moved(gone: Sequence[Line], come: Sequence[Line]) -> Iterator[Site]:
    stays = Counter(_key(x) for x in gone) & Counter(_key(x) for x in come)
    for line in come:
        if not stays[_key(line)]:
            yield _whole(line)
        elif not FILLER.fullmatch(_key(line)):
            yield Site("scheduling", "order of lines", line.function, line.number, frozenset(NAME.findall(line.text)))
    yield from (_whole(line) for line in gone if not stays[_key(line)])


def _whole(line: Line) -> Site:
    names = frozenset(NAME.findall(line.text))
    if FILLER.fullmatch(_key(line)) and not line.text.startswith("//"):
        return Site(None, _shown(line.text), line.function, line.number, names)
    kind, what = _kind(line.text, names, line.text)
    return Site(kind, what, line.function, line.number, names)


def _kind(differs: str, names: frozenset[str], line: str) -> tuple[ChangeKind | None, str]:
    """The kind of what differs in a line, and what to call it."""
    for feature in features.coded(line):
        if feature.kind == "arch" and feature not in features.coded(_without(line, names)):
            return (
                "arch" if "cpu" not in feature.platforms else "memory" if _only_moves(line) else "algorithm"
            ), feature.what
    if line.startswith("//"):
        return _kind_of_flags(differs)
    return _kind_of_code(differs, names, line)


def _kind_of_code(differs: str, names: frozenset[str], line: str) -> tuple[ChangeKind | None, str]:
    if HANDED_ON.fullmatch(differs):
        return None, "arguments"
    given = next((m.group(1) for m in (DEFINED.match(line), ASSIGNED.search(line)) if m), "")
    if words.is_launch_name(given) or "<<<" in line or re.match(r".*\bdim3\b", line):
        return ("scheduling" if words.SCHEDULING_CODE.search(differs) else "launch"), given or "launch"
    for pattern, kind in CODES:
        if found := pattern.search(differs):
            return kind, found.group()
    if names and names <= LOOSE | words.MATH:
        return "numerics", " to ".join(sorted(names))
    if _only_moves(line):
        return "memory", _shown(line)
    return "algorithm", _shown(line)


def _kind_of_flags(differs: str) -> tuple[ChangeKind | None, str]:
    for pattern, kind in CODES:
        if found := pattern.search(differs.replace(" - ", "-")):
            return kind, found.group()
    return None, "compiler flags"


def _without(line: str, names: frozenset[str]) -> str:
    return NAME.sub(lambda m: "" if m.group() in names else m.group(), line)


def _only_moves(line: str) -> bool:
    """Whether a line loads or stores and does not compute."""
    return re.search(r"\b_mm\w*_(?:loadu?|storeu?|stream|prefetch)\w*\(", line) is not None and not re.search(
        r"\b_mm\w*_(?:add|sub|mul|fma\w*|div|max|min|exp)\w*\(", line
    )


def _near(site: Site, calls: dict[str, frozenset[str]]) -> Site:
    """A constant belongs with the first function that uses it; the compiler's flags with the first there is."""
    if site.function:
        return site
    users = [function for function, mentioned in calls.items() if function and site.names & mentioned]
    user = next(iter([*users, *filter(None, calls)]), "")
    return Site(site.kind, site.what, site.function, site.line, site.names, user)


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
