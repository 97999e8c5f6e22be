"""Where two versions of a C, C++, CUDA or HIP file differ, line by line, and what kind of change that is. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kopt_mcp import csource, features
from kopt_mcp.changes import words
from kopt_mcp.changes.sites import Site, differences, shown, unequal
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


def compare(old: str, new: str, name: str) -> tuple[list[Site], frozenset[str], dict[str, frozenset[str]]]:
    """(places that differ, names that only one version has, names that each function mentions)."""
    before, after = _lines(old), _lines(new)
    calls = _calls([*before, *after])
    # The compiler's flags belong with the first function there is.
    near = next(filter(None, calls), "")
    sites = [_site(one, other, near) for one, other in differences(before, after, _key, _alike)]
    return [site for site in sites if site], frozenset(_names(before) ^ _names(after)), calls


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


def _alike(one: Line, other: Line) -> bool:
    return difflib.SequenceMatcher(None, _words(one.text), _words(other.text), autojunk=False).ratio() > 0.6


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\S", text)


def _site(old: Line | None, new: Line | None, near: str) -> Site | None:
    """The place of one difference; a moved line that only closes or includes something is none."""
    line = new or old
    assert line is not None
    filler, differs = FILLER.fullmatch(_key(line)), line.text
    kind: ChangeKind | None
    if old is new:
        if filler:
            return None
        kind, what = "scheduling", "order of lines"
    elif old and new:
        # Judged by the words that differ before the words around them.
        differs = _differing(old.text, new.text)
        kind, what = _kind(differs, line.text)
    elif filler and not line.text.startswith("//"):
        kind, what = None, shown(line.text)
    else:
        kind, what = _kind(differs, line.text)
    return Site(kind, what, line.function, line.number, frozenset(NAME.findall(differs)), "" if line.function else near)


def _differing(old: str, new: str) -> str:
    """The words that either version has more: those of the old one, then those of the new one."""
    one, other = _words(old), _words(new)
    stretches = unequal(one, other)
    cut = [word for i1, i2, _, _ in stretches for word in one[i1:i2]]
    put = [word for _, _, j1, j2 in stretches for word in other[j1:j2]]
    return " ".join([*cut, *put])


def _kind(differs: str, line: str) -> tuple[ChangeKind | None, str]:
    """The kind of what differs in a line, and what to call it."""
    names = frozenset(NAME.findall(differs))
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
        return "numerics", ", ".join(sorted(names))
    if _only_moves(line):
        return "memory", shown(line)
    return "algorithm", shown(line)


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
