"""The loop as a client reaches it: every call goes through an MCP client and server in this process."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import anyio
from mcp import Client
from pydantic import BaseModel

from kopt_mcp import errors, results
from kopt_mcp.loop import Loop
from kopt_mcp.server import create_server

ANSWERS: dict[str, type[BaseModel]] = {
    "detect_gpu": results.DetectResult,
    "baseline": results.BaselineResult,
    "profile": results.ProfileResult,
    "diagnose": results.DiagnoseResult,
    "apply_patch": results.PatchResult,
    "verify": results.VerifyResult,
    "benchmark": results.BenchmarkResult,
    "decide": results.DecideResult,
    "log": results.LogResult,
}


class OverMcp:
    """Looks like a `Loop`; a tool error comes back as the exception that it was made from."""

    def __init__(self, loop: Loop, root: Any) -> None:
        self._loop = loop
        self._place = SimpleNamespace(loop=loop, root=root)

    def __getattr__(self, name: str) -> Any:
        if name not in ANSWERS:
            return getattr(self._loop, name)

        def call(*given: Any, **named: Any) -> Any:
            bound = inspect.signature(getattr(self._loop, name)).bind(*given, **named)
            arguments = {key: _plain(value) for key, value in bound.arguments.items() if value is not None}
            return anyio.run(self._call, name, arguments)

        return call

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        async with Client(create_server(self._place)) as client:  # type: ignore[arg-type]
            result = await client.call_tool(tool, arguments)
        assert result.structured_content is not None
        if result.is_error:
            error = result.structured_content["error"]
            assert result.content[0].text == error["text"]  # type: ignore[union-attr]
            raise getattr(errors, error["kind"])(error["text"])
        return ANSWERS[tool].model_validate(result.structured_content)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
