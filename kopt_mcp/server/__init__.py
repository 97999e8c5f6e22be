"""The MCP skin: nine tools, documents and files as resources, two prompts. It adds no rule of its own.

    tools.py      the nine tools and their hints       schemas.py   short schemas, strict arguments
    running.py    a step in a thread, with progress    answers.py   results and refusals, the same in both channels
    asking.py     questions to the user                links.py     what goes beside an answer
    resources.py  files of experiments                 documents.py the same, and skills, as a tool's answer
    prompts.py    prompts and completions              skills_extension.py   SEP-2640
    http.py       many clients, Streamable HTTP        pages.py     documentation rendered from the code
    pictures.py   charts, pages and the app, drawn by a process of their own

Each tool runs a method of the loop in a worker thread; progress goes out as it comes, and cancelling a call ends the
processes that it started. A `KoptError` becomes a tool error whose text and structured content say the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import Client
from mcp.server import MCPServer
from mcp.types import TextContent, Tool

from kopt_mcp import __version__
from kopt_mcp.server import pictures, prompts, resources
from kopt_mcp.server.place import App, Workplace
from kopt_mcp.server.skills_extension import Skills
from kopt_mcp.server.tools import HINTS, all_tools

__all__ = ["INSTRUCTIONS", "Workplace", "call_tool", "create_server", "describe"]

MOST_STEPS = 32
INSTRUCTIONS = """\
kopt-mcp makes a GPU or CPU kernel faster, one guarded step at a time. You decide what to try; the server decides what \
is true: whether the kernel is right, how fast it is, and whether a change may stay.

The loop: detect_gpu, baseline (returns the `experiment` handle), then per iteration profile, diagnose, apply_patch, \
verify, benchmark, decide. Each answer lists `next`: the tools that are legal now. A refusal says what is wrong and \
what to do next. Change the kernel only through apply_patch, one change per iteration; never edit the test file.

Read skill://optimize-loop/SKILL.md before the first iteration, and what `diagnose` names in `read` before each patch: \
as resources, or with log(read="optimize-loop"). kernel_path is relative to the project; the problem (test_*.py) is \
found beside it. After a context loss, `log` with the experiment returns all that is needed to go on. The user's log \
is experiments/README.md.

Numbers: times are medians with caches cold, the candidate timed in turns with the best version so far. A gain within \
the noise is NEUTRAL and is taken back. Report numbers to the user as they stand in the answers, with their interval."""


def create_server(place: Workplace, *, ask_before_patch: bool = False, most_steps: int = MOST_STEPS) -> MCPServer[App]:
    """The MCP server for one project.

    Args:
        ask_before_patch: see `tools.all_tools`.
        most_steps: see `App.steps`.
    """

    @asynccontextmanager
    async def lifespan(_: MCPServer[App]) -> AsyncIterator[App]:
        yield App(place, anyio.CapacityLimiter(most_steps))

    server = MCPServer(
        "kopt-mcp",
        title="Kernel optimisation",
        version=__version__,
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        log_level="WARNING",
        tools=list(all_tools(place, ask_before_patch)),
        extensions=[Skills(learned=lambda: place.loop.learned_patterns()), pictures.app()],
    )
    resources.register(server, place)
    pictures.register(server, place, pictures.Pictures(place.root))
    prompts.register(server, place)
    return server


async def describe(place: Workplace) -> str:
    """What a client is told of the tools, for people: each with its arguments, a star at those that must be given."""
    return "\n\n".join(_described(tool) for tool in await create_server(place).list_tools())


def _described(tool: Tool) -> str:
    lines = [f"{tool.name}: {tool.description}"]
    for name, about in tool.input_schema["properties"].items():
        kind = "|".join(about["enum"]) if "enum" in about else about.get("type", "")
        star = "*" if name in tool.input_schema.get("required", ()) else ""
        lines.append(f"  {name}{star} ({kind}): {about.get('description', '')}")
    return "\n".join(lines)


async def call_tool(place: Workplace, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
    """Call one tool as a client would; its text, and whether it is an error."""
    async with Client(create_server(place)) as client:
        if name not in HINTS:
            return f"there is no tool {name!r}; the tools are {', '.join(HINTS)}.", True
        result = await client.call_tool(name, arguments)
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    return "\n".join(texts), bool(result.is_error)
