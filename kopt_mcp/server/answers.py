"""Results and refusals as a client gets them: the same facts as text and as structured content.

Some clients show the model only the text, some only the structured content (measured on public builds of two).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from mcp.types import CallToolResult, ContentBlock, TextContent

from kopt_mcp.models import Record


def failure(kind: str, text: str) -> CallToolResult:
    """A tool error that says the same in both channels."""
    return CallToolResult(
        is_error=True,
        content=[TextContent(type="text", text=text)],
        structured_content={"error": {"kind": kind, "text": text}},
    )


def success(result: Record, beside: Sequence[ContentBlock] = ()) -> CallToolResult:
    """A result as compact JSON, the same in both channels; null means that something was not measured.

    Args:
        beside: what goes with it for clients that show it: links to resources, pictures. Nothing that is only there.
    """
    content = result.model_dump(mode="json")
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return CallToolResult(content=[TextContent(type="text", text=text), *beside], structured_content=content)
