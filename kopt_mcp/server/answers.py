"""Results and refusals as a client gets them: the same facts as text and as structured content, no longer than is read.

Some clients show the model only the text, some only the structured content (measured on public builds of two).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mcp.types import CallToolResult, ContentBlock, TextContent

from kopt_mcp.models import Record
from kopt_mcp.results import LogResult

MOST_BYTES = 4096
"""Of an answer: what a model can take in beside its own work."""
LEAST_TEXT = 200
"""Characters that are left of any text."""


def failure(kind: str, text: str) -> CallToolResult:
    """A tool error that says the same in both channels."""
    return CallToolResult(
        is_error=True,
        content=[TextContent(type="text", text=text)],
        structured_content={"error": {"kind": kind, "text": text}},
    )


def success(result: Record, beside: Sequence[ContentBlock] = (), *, whole: bool = False) -> CallToolResult:
    """A result as compact JSON, the same in both channels; null means that something was not measured.

    Args:
        beside: what goes with it for clients that show it: links to resources, pictures. Nothing that is only there.
        whole: however long it is; otherwise it is shortened to `MOST_BYTES`, and says so where it has notes.
    """
    # What log did not look for is left out: its answers are of three kinds, and each would be mostly empty.
    content = result.model_dump(mode="json", exclude_unset=isinstance(result, LogResult))
    if not whole:
        content = shortened(content)
    return CallToolResult(content=[TextContent(type="text", text=_text(content)), *beside], structured_content=content)


def shortened(content: dict[str, Any]) -> dict[str, Any]:
    """An answer without the ends of its longest lists, then of its longest texts, so that it fits; the first of each is
    what matters most. The journal, and `log`, have the rest."""
    kept = dict(content)
    while len(_text(_noted(content, kept)).encode()) > MOST_BYTES:
        name = max(kept, key=lambda name: _spare(name, kept[name]))
        if not _spare(name, kept[name]):
            break
        kept[name] = _less(kept[name])
    return _noted(content, kept)


def _spare(name: str, value: Any) -> int:
    """How much there is to be gained by shortening a field: lists before texts, whatever their lengths."""
    if name == "next":  # without it nobody knows how to go on
        return 0
    if isinstance(value, list):
        return 1000 * len(_text(value)) if len(value) > 1 else 0
    if isinstance(value, dict):
        return max((_spare("", inner) for inner in value.values() if isinstance(inner, str)), default=0)
    return len(value) if isinstance(value, str) and len(value) > LEAST_TEXT else 0


def _less(value: Any) -> Any:
    """A list without its last item, a table without its oldest row, other text without its last quarter."""
    if isinstance(value, list):
        return value[:-1]
    if isinstance(value, dict):
        longest = max(value, key=lambda name: len(value[name]) if isinstance(value[name], str) else 0)
        return {**value, longest: _less(value[longest])}
    rows = value.split("\n")
    if value.startswith("|") and len(rows) > 5:  # head, rule, the baseline, and at least the newest
        return "\n".join([*rows[:3], "| ... | older rows are in experiments/README.md | | | | | |", *rows[5:]])
    return value[: max(LEAST_TEXT - 4, len(value) * 3 // 4)] + " ..."


def _noted(content: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """With a word on what was shortened, where the answer has a place for it."""
    short = [
        f"{name} ({len(kept[name])} of {len(value)})" if isinstance(value, list) else name
        for name, value in content.items()
        if kept[name] != value
    ]
    if not short or "notes" not in kept:
        return kept
    return {**kept, "notes": [*kept["notes"], f"shortened to be read: {', '.join(short)}."]}


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
