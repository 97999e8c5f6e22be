"""What a patch changed, line by line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

CONTEXT = 3
LONGEST = 3000
"""Lines of a version that are compared: the comparison's time may grow with the square, and whoever wrote the kernel
chose its lines."""


@dataclass(frozen=True)
class DiffLine:
    """One line of a diff, with its number in the version that it belongs to."""

    kind: Literal["same", "added", "removed", "gap"]
    number: int | None
    text: str


@dataclass(frozen=True)
class Change:
    """The lines of a diff, or why there are none."""

    lines: tuple[DiffLine, ...]
    why_not: str = ""


def change(before: str, after: str) -> Change:
    """The difference of two versions, with a few lines around each place."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > LONGEST:
        return Change((), f"A version has more than {LONGEST} lines; compare the files kept beside the journal.")
    lines = tuple(_lines(old, new))
    return Change(lines, "" if lines else "The two versions have the same lines.")


def _lines(before: list[str], after: list[str]) -> Iterator[DiffLine]:
    matcher = difflib.SequenceMatcher(a=before, b=after)
    for count, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        if count:
            yield DiffLine("gap", None, "")
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                yield from (DiffLine("same", new_start + k + 1, line) for k, line in enumerate(before[start:end]))
                continue
            yield from (DiffLine("removed", start + k + 1, line) for k, line in enumerate(before[start:end]))
            yield from (DiffLine("added", new_start + k + 1, line) for k, line in enumerate(after[new_start:new_end]))
