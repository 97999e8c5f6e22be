"""What a caller may hand in, by the name of the argument: anything else is refused before it is looked at. Pure."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from kopt_mcp.errors import InputRefused

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlong = 40


def shown(value: Any) -> str:
    """A value as it is quoted in a refusal: its repr, cut where it is long or deep."""
    return _SHORT.repr(value)


def cut(text: str, longest: int) -> str:
    """A text of at most `longest` characters: one that is longer ends after a word, with an ellipsis."""
    if len(text) <= longest:
        return text
    head = text[: longest - 1]
    return f"{head.rpartition(' ')[0].rstrip(' ,;:.(') or head}…"


def check(**given: Any) -> None:
    """Refuse the first argument that is not of its kind.

    Raises:
        InputRefused: names the argument, what it is and what is expected.
    """
    for name, value in given.items():
        fits, expected = KINDS[name]
        if not fits(value):
            raise InputRefused(f"{name} is {shown(value)}; expected {expected}; nothing ran.")


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _list_or_none(value: Any) -> bool:
    return value is None or isinstance(value, (list, tuple))


KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "experiment": (_text, "the handle that baseline returned"),
    "workload": (_text_or_none, "the name of a workload"),
    "depth": (_text, "quick or full"),
    "tier": (_whole, "1 to 5"),
    "hypothesis": (_text, "one sentence"),
    "edits": (_list_or_none, "a list of {search, replace} pairs"),
    "diff": (_text_or_none, "a unified diff"),
    "content": (_text_or_none, "the whole new text of the kernel"),
    "working_copy": (_flag, "true or false"),
    "idea": (_text_or_none, "the id of an idea"),
    "because": (_text_or_none, "one sentence"),
    "sanitize": (_flag, "true or false"),
    "keep_reason": (_text_or_none, "one sentence"),
    "stop": (_flag, "true or false"),
    "reason": (_text_or_none, "one sentence"),
    "query": (_text_or_none, "some words"),
}
