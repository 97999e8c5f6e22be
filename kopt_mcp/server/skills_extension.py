"""The skills over MCP (SEP-2640): the requests `skills/list`, `skills/get` and `resources/directory/read`.

The Python SDK is to bring an extension of its own; this module is what it will replace. Clients that do not know the
extension see the same files as plain resources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any

import anyio.to_thread
from mcp.server.extension import Extension, MethodBinding, ResourceBinding
from mcp.server.mcpserver.resources import FunctionResource
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CacheableResult, PaginatedRequestParams, RequestParams

from kopt_mcp import skills

FRESH_MS = 300_000
"""For how long a client need not ask again: the package does not change while it is used."""
DIRECTORY = "inode/directory"
LEARNED = "skill://learned-patterns/SKILL.md"


class UriParams(RequestParams):
    """What `skills/get` and `resources/directory/read` are given."""

    uri: str
    cursor: str | None = None


class ListSkillsResult(CacheableResult):
    """Every skill: its URI, its frontmatter, and the files that belong to it with their digests."""

    skills: list[dict[str, Any]]


class GetSkillResult(CacheableResult):
    """One skill."""

    skill: dict[str, Any]


class DirectoryResult(CacheableResult):
    """What lies in a folder, files and folders."""

    resources: list[dict[str, Any]]


class Skills(Extension):
    """The skills of the package, and one that is written as experiments go.

    Args:
        learned: the text of the skill `learned-patterns` as it is now.
    """

    identifier = "io.modelcontextprotocol/skills"

    def __init__(self, learned: Callable[[], str]) -> None:
        self._found = skills.find()
        self._learned = learned

    def settings(self) -> dict[str, Any]:
        """What is advertised: folders can be read too."""
        return {"directoryRead": True}

    def resources(self) -> Sequence[ResourceBinding]:
        """Each file as a resource of its own: templates do not show in every client's list."""
        learned = FunctionResource(
            uri=LEARNED,
            name="learned-patterns",
            description="What was tried on kernels here, what it gained and what failed. Read it after diagnose.",
            mime_type="text/markdown",
            fn=self._learned,
        )
        return [ResourceBinding(_resource(file)) for skill in self._found for file in skill.files] + [
            ResourceBinding(learned)
        ]

    def methods(self) -> Sequence[MethodBinding]:
        """The three requests."""
        return [
            MethodBinding("skills/list", PaginatedRequestParams, self._list),
            MethodBinding("skills/get", UriParams, self._get),
            MethodBinding("resources/directory/read", UriParams, self._directory),
        ]

    async def _list(self, ctx: Any, params: Any) -> ListSkillsResult:
        entries = [_entry(skill) for skill in self._found]
        return ListSkillsResult(skills=[*entries, await self._learned_entry()], ttl_ms=FRESH_MS, cache_scope="public")

    async def _get(self, ctx: Any, params: UriParams) -> GetSkillResult:
        if params.uri == LEARNED:
            entry = await self._learned_entry()
        else:
            found = next((skill for skill in self._found if skill.uri == params.uri), None)
            if found is None:
                raise MCPError(code=INVALID_PARAMS, message=f"Unknown skill: {params.uri}", data={"uri": params.uri})
            entry = _entry(found)
        return GetSkillResult(skill=entry, ttl_ms=FRESH_MS, cache_scope="public")

    async def _directory(self, ctx: Any, params: UriParams) -> DirectoryResult:
        files = [file for skill in self._found for file in skill.files]
        children = _children(params.uri.rstrip("/") + "/", files)
        if not children:
            raise MCPError(code=INVALID_PARAMS, message=f"Not a directory: {params.uri}", data={"uri": params.uri})
        return DirectoryResult(resources=children, ttl_ms=FRESH_MS, cache_scope="public")

    async def _learned_entry(self) -> dict[str, Any]:
        text = await anyio.to_thread.run_sync(self._learned)
        return {"uri": LEARNED, "frontmatter": skills.parsed(text, LEARNED), "resources": "dynamic"}


def _resource(file: skills.SkillFile) -> FunctionResource:
    return FunctionResource(
        uri=file.uri,
        name=file.name,
        description=file.description,
        mime_type=file.mime_type,
        # Byte for byte, line ends included: the digest is of the file.
        fn=lambda: file.path.read_bytes().decode("utf-8"),
    )


def _entry(skill: skills.Skill) -> dict[str, Any]:
    files = [(file.uri, file.path.read_bytes()) for file in skill.files]
    manifest = [{"uri": uri, "digest": f"sha256:{sha256(data).hexdigest()}", "size": len(data)} for uri, data in files]
    return {"uri": skill.uri, "frontmatter": skill.frontmatter, "resources": manifest}


def _children(folder: str, files: Sequence[skills.SkillFile]) -> list[dict[str, Any]]:
    """What lies directly in a folder, by URI; empty where it is none."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        if not file.uri.startswith(folder):
            continue
        name, *below = PurePosixPath(file.uri.removeprefix(folder)).parts
        kind = DIRECTORY if below else file.mime_type
        found[name] = {"uri": folder + name, "name": name, "mimeType": kind}
    return [found[name] for name in sorted(found)]
