"""How a change is described, and how it is carried out on a text. Pure.

Texts use `\\n` here; `workspace` keeps the file's own line ends and byte order mark.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from kopt_mcp.errors import InputRefused
from kopt_mcp.models import Described

LONGEST_LINE = 300


class Edit(Described):
    """Replace one piece of text, which must be there exactly once."""

    search: str
    """Exact text, whole lines or part of one; long enough to be unique."""
    replace: str


def pairs(given: Sequence[object]) -> list[Edit]:
    """The edits among what was handed in as such.

    Raises:
        InputRefused: one of them is something else.
    """
    for number, edit in enumerate(given):
        if not isinstance(edit, Edit):
            raise InputRefused(f"edits[{number}] is a {type(edit).__name__}; expected a {{search, replace}} pair.")
    return [edit for edit in given if isinstance(edit, Edit)]


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Carry out search/replace pairs one after the other.

    Raises:
        InputRefused: a search text is empty, is not there, or is there more than once.
    """
    if not edits:
        raise InputRefused("edits is empty; nothing would change; give at least one {search, replace} pair.")
    for number, edit in enumerate(edits):
        search, replace = edit.search.replace("\r\n", "\n"), edit.replace.replace("\r\n", "\n")
        if not search:
            raise InputRefused(f"edits[{number}].search is empty; give the exact text to replace.")
        count = text.count(search)
        if count != 1:
            raise InputRefused(f"edits[{number}].search matches {count} times; {_hint(text, search, count)}")
        text = text.replace(search, replace)
    return text


def apply_diff(text: str, diff: str, kernel: str) -> str:
    """Carry out a unified diff of one file; hunks are found by their context, whatever their line numbers say.

    Args:
        kernel: the file's path, for the check that the diff is of that file.

    Raises:
        InputRefused: the diff is not one of this file, or a hunk's context is missing or ambiguous.
    """
    lines = text.split("\n")
    shift = 0
    for number, (at, old, new) in enumerate(_hunks(diff, kernel), start=1):
        start = _locate(lines, old, at + shift, number)
        lines[start : start + len(old)] = new
        shift = start - at + len(new) - len(old)
    return "\n".join(lines)


def changed_lines(old: str, new: str) -> tuple[int, int]:
    """How many lines a change adds and removes."""
    before, after = old.split("\n"), new.split("\n")
    if max(len(before), len(after)) > 20_000:  # a comparison line by line would take minutes
        return max(0, len(after) - len(before)), max(0, len(before) - len(after))
    codes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = [(j2 - j1, i2 - i1) for tag, i1, i2, j1, j2 in codes if tag != "equal"]
    return sum(added for added, _ in changed), sum(removed for _, removed in changed)


def _hint(text: str, search: str, count: int) -> str:
    lines = text.split("\n")
    if count > 1:
        places = [str(text.count("\n", 0, found.start()) + 1) for found in re.finditer(re.escape(search), text)]
        return f"at lines {', '.join(places[:5])}; add the lines around it until it is unique."
    first = next((line for line in search.split("\n") if line.strip()), "")
    # A comparison takes time with the square of the length: no code is looked for in lines that are none.
    comparable = [line for line in lines[:5000] if len(line) <= LONGEST_LINE]
    near = difflib.get_close_matches(first[:LONGEST_LINE], comparable, n=1, cutoff=0.5)
    if near:
        return f"nearest is line {lines.index(near[0]) + 1}: {near[0]!r}; copy the text exactly, with its indentation."
    return "no line comes near it; read the file again and copy the text exactly."


def _hunks(diff: str, kernel: str) -> list[tuple[int, list[str], list[str]]]:
    """(line it claims to start at, from 0; old lines; new lines) of each hunk."""
    import whatthepatch  # late: it is not needed to list the tools

    names, text = _tidied(diff)
    if len(names) > 1 or not text:
        what = f"is of {len(names)} files" if len(names) > 1 else "holds no hunk"
        raise InputRefused(f"the diff {what}; expected a unified diff of {kernel} alone, with @@ lines.")
    own = PurePosixPath(kernel).name
    if names and PurePosixPath(names[0]).name != own:
        raise InputRefused(f"the diff is of {names[0][:200]!r}; only the kernel, {kernel}, may be changed.")
    hunks: dict[int, tuple[int, list[str], list[str]]] = {}
    for change in [change for file in whatthepatch.parse_patch(text) for change in file.changes or ()]:
        _, old, new = hunks.setdefault(change.hunk, (max((change.old or change.new or 1) - 1, 0), [], []))
        if change.old is not None:
            old.append(change.line)
        if change.new is not None:
            new.append(change.line)
    return list(hunks.values())


def _tidied(diff: str) -> tuple[list[str], str]:
    """The files that a diff names, and its hunks alone, with counts that fit their bodies.

    Models miscount, and the parser believes the header; and it takes what is around the hunks for other formats.

    Raises:
        InputRefused: a line inside a hunk has no mark, so that what follows it would be left out.
    """
    lines = diff.replace("\r\n", "\n").rstrip("\n").split("\n")
    names: list[str] = []
    out: list[str] = []
    at, end = 0, len(lines)
    while at < len(lines):
        start = re.match(r"@@(?: -(\d{1,7})(?:,\d*)? \+\d+(?:,\d*)?)?", lines[at])
        if _names_file(lines, at):
            names.append(lines[at][4:].split("\t")[0].strip())
            at, end = at + 2, len(lines)
            continue
        if start is None:
            if at > end and lines[at].startswith(("+", "-")):
                raise InputRefused(
                    f"line {end + 1} of the diff, {lines[end][:80]!r}, has no mark; a hunk's lines begin with a space, "
                    "+ or -; mark it, or send edits."
                )
            at += 1
            continue
        body, end = _body(lines, at + 1)
        at = end
        old = sum(line[0] in " -" for line in body)
        new = sum(line[0] in " +" for line in body)
        first = start.group(1) or "1"
        out += [f"@@ -{first},{old} +{first},{new} @@", *body]
    return names, "\n".join(["--- kernel", "+++ kernel", *out, ""]) if out else ""


def _names_file(lines: list[str], at: int) -> bool:
    return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")


def _body(lines: list[str], at: int) -> tuple[list[str], int]:
    """The lines of the hunk that begins at `at`, blank ones as blank context, and where it ends."""
    body: list[str] = []
    while at < len(lines):
        line = lines[at]
        if _names_file(lines, at) or (line and line[0] not in " +-\\"):
            break
        if not line.startswith("\\"):
            body.append(line or " ")
        at += 1
    while body and body[-1] == " " and lines[at - 1] == "":  # blank lines between hunks are nobody's context
        body.pop()
        at -= 1
    return body, at + _blank(lines, at)


def _blank(lines: list[str], at: int) -> int:
    count = 0
    while at + count < len(lines) and lines[at + count] == "":
        count += 1
    return count


def _locate(lines: list[str], old: list[str], claimed: int, number: int) -> int:
    if not old:
        raise InputRefused(f"hunk {number} has no context; nobody can tell where it belongs; add the lines around it.")
    size = len(old)
    if lines[max(claimed, 0) : max(claimed, 0) + size] == old:
        return max(claimed, 0)
    found = [at for at in range(len(lines) - size + 1) if lines[at] == old[0] and lines[at : at + size] == old]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(str(at + 1) for at in found[:5])
        raise InputRefused(f"hunk {number} fits {len(found)} places (lines {places}); add context until one is left.")
    raise InputRefused(f"hunk {number} fits nowhere; {_hint(chr(10).join(lines), _telling(old), 0)}")


def _telling(old: list[str]) -> str:
    return max(old, key=lambda line: len(line.strip()))
