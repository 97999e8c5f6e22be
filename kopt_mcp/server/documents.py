"""The documents as a tool's answer, for clients that show a model no resources."""

from __future__ import annotations

import difflib
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError
from mcp.types import CallToolResult

from kopt_mcp import skills
from kopt_mcp.results import LogResult
from kopt_mcp.server import links
from kopt_mcp.server.answers import failure, success
from kopt_mcp.server.skills_extension import LEARNED

MOST = 24_000
"""Characters of one answer; every skill is shorter (the tests say so), a profiler's report need not be."""


async def answer(ctx: Context[Any, Any], name: str, *, alone: bool) -> CallToolResult:
    """The text of a document: a skill by its name, anything that the server serves by its URI.

    Args:
        alone: no other argument was given, which would go unanswered.
    """
    if not alone:
        text = "read is given together with experiment or query; one call answers one of them; drop the others."
        return failure("InputRefused", text)
    uri = uri_of(name)
    if uri is None:
        return failure("InputRefused", _unknown(name))
    try:
        (content,) = await ctx.read_resource(uri)
    except ResourceError as error:
        return failure("InputRefused", f"read is {name[:200]!r}: {error} Name a skill or what an answer linked.")
    if isinstance(content.content, bytes):
        text = f"{uri} is no text ({len(content.content)} bytes); open the file where it lies, under experiments/."
        return failure("InputRefused", text)
    text = content.content
    if len(text) > MOST:
        where = uri.replace("experiment://", "experiments/")
        text = f"{text[:MOST]}\n[{len(text) - MOST} more characters; the whole is {where}]"
    return success(LogResult(next=("detect_gpu", "baseline", "log"), document=text), whole=True)


def uri_of(name: str) -> str | None:
    """The resource that is meant; None where a bare name is no skill's.

    A URI stands for itself, experiments/ID/FILE for that file, a bare name for a skill's SKILL.md, and a path as the
    skills link to it (references/answers.md) for the one file whose path ends so.
    """
    if "://" in name:
        return name
    if name.startswith("experiments/") and name.count("/") >= 2:
        return links.uri_of(name)
    path = name.strip().lower().lstrip("./")
    ending = [f.uri for f in skills.files() if f.uri.lower().endswith((f"/{path}", f"{skills.SCHEME}{path}"))]
    return _by_name().get(path.removesuffix("/skill.md")) or (ending[0] if len(ending) == 1 else None)


def _by_name() -> dict[str, str]:
    found = {skill.path.removeprefix("kernels/"): skill.uri for skill in skills.find()}
    return {**found, "learned-patterns": LEARNED}


def _unknown(name: str) -> str:
    known = _by_name()
    near = difflib.get_close_matches(name, known, n=1) or [one for one in known if name and one.startswith(name)]
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
    return f"read is {name[:100]!r}; no document has this name; {hint}"
