"""What goes beside an answer, for clients that show it: links to what is too long for it. Each `of_...` takes a tool's
result and returns content blocks; a picture (`ImageContent`) can be returned in the same way."""

from __future__ import annotations

from pathlib import PurePosixPath

from mcp.types import ResourceLink

from kopt_mcp.results import DecideResult, PatchResult, ProfileResult
from kopt_mcp.server.resources import MIME_TYPES


def of_profile(result: ProfileResult) -> list[ResourceLink]:
    """The raw reports and all metrics."""
    return [_link(uri_of(path), PurePosixPath(path).name, "From the profile.") for path in result.artifacts]


def of_patch(result: PatchResult) -> list[ResourceLink]:
    """What changed, and the new version whole."""
    difference = f"experiment://{result.experiment}/diffs/{result.parent}/{result.sha256}"
    return [
        _link(difference, f"iteration-{result.iteration}.diff", "What this patch changed."),
        _link(uri_of(result.snapshot), PurePosixPath(result.snapshot).name, "The patched kernel."),
    ]


def of_decision(result: DecideResult) -> list[ResourceLink]:
    """What stands behind the numbers of the kernel that is on disk now."""
    if not result.certificate:
        return []
    uri = f"experiment://{result.experiment}/certificates/{result.sha256}"
    return [_link(uri, "certificates.json", "What stands behind the numbers.")]


def uri_of(path: str) -> str:
    """The URI of a file of an experiment, from its path relative to the project."""
    _, experiment, inner = path.split("/", 2)
    return f"experiment://{experiment}/{inner}"


def _link(uri: str, name: str, description: str) -> ResourceLink:
    suffix = PurePosixPath(name).suffix
    mime_type = "text/x-diff" if suffix == ".diff" else MIME_TYPES.get(suffix, "text/plain")
    return ResourceLink(type="resource_link", uri=uri, name=name, description=description, mime_type=mime_type)
