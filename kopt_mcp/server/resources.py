"""What the server serves to be read besides the skills: the files of experiments.

A further kind of resource, such as a rendered report, gets a function here and a line in `register`. What a client must
show as an app (`ui://`) is an extension of the SDK (`mcp.server.apps.Apps`): it goes into the list in
`create_server`, and its tool names it in `tools.HINTS[...].meta`. A picture beside a tool's answer: see `links`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError

from kopt_mcp.server.place import App, Workplace

MOST_BYTES = 4 << 20
"""What is sent of one file; larger ones are opened where they lie."""
MIME_TYPES = {
    ".json": "application/json",
    ".csv": "text/csv",
    ".md": "text/markdown",
    ".html": "text/html",
    ".png": "image/png",
}
VERSION = re.compile(r"[0-9a-f]{12}")


def register(server: MCPServer[App], place: Workplace) -> None:
    """Everything that is not a skill."""
    files = ExperimentFiles(place.root)
    template = partial(server.resource, name="experiment")
    template(
        "experiment://{experiment}/diffs/{old}/{new}",
        description="What changed from one version of the kernel to another, each named by 12 digits of its hash.",
        mime_type="text/x-diff",
    )(files.diff)
    template(
        "experiment://{experiment}/certificates/{version}",
        description="What stands behind each number of one version of the kernel, from the verified journal.",
        mime_type="application/json",
    )(files.certificates)
    about = "A file of an experiment: profiles/..., candidates/..., journal.jsonl."
    for suffix, mime_type in MIME_TYPES.items():
        template("experiment://{experiment}/{+path}" + suffix, description=about, mime_type=mime_type)(
            files.ending_in(suffix)
        )
    template("experiment://{experiment}/{+path}", description=about)(files.read)


class ExperimentFiles:
    """The files in experiments/<id>/ of a project; nothing else, and only to be read."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve() / "experiments"

    def read(self, experiment: str, path: str) -> str | bytes:
        """A file, as text where it is one.

        Raises:
            ResourceNotFoundError: there is no such file, or it is not one of the experiment's own.
            ResourceError: it is too large to be sent.
        """
        data = self._data(experiment, path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return data

    def names(self) -> list[str]:
        """The experiments that there are, the one that was worked on last first."""
        from kopt_mcp.experiments import begun

        journals = [path for path in self._root.glob("*/journal.jsonl") if begun(path)]
        return [path.parent.name for path in sorted(journals, key=lambda path: -path.stat().st_mtime)]

    def of(self, experiment: str) -> list[str]:
        """The files of an experiment, relative to its folder; none where it is not known."""
        with suppress(ResourceNotFoundError):
            folder = self._folder(experiment)
            found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
            return sorted(found)
        return []

    def ending_in(self, suffix: str) -> Any:
        """`read` for a template whose variable leaves the suffix out."""

        def read(experiment: str, path: str) -> str | bytes:
            return self.read(experiment, path + suffix)

        return read

    def diff(self, experiment: str, old: str, new: str) -> str:
        """A unified diff of two versions of the kernel.

        Raises:
            ResourceNotFoundError: one of them is not kept in the experiment.
        """
        before, after = (self._version(experiment, name).splitlines(keepends=True) for name in (old, new))
        return "".join(difflib.unified_diff(before, after, fromfile=old, tofile=new))

    def certificates(self, experiment: str, version: str) -> str:
        """The certificates of one version of the kernel, oldest first, as JSON.

        Raises:
            ResourceNotFoundError: it has none.
            ResourceError: the journal does not verify.
        """
        from kopt_mcp.errors import KoptError
        from kopt_mcp.journal import Journal

        try:
            events = Journal(self._folder(experiment) / "journal.jsonl").read()
        except KoptError as error:
            raise ResourceError(str(error)) from error
        found = [c for event in events for c in _certificates(event.data) if c["source_sha256"][:12] == version]
        if not found:
            raise ResourceNotFoundError(f"experiment {experiment!r} has no certificate of version {version[:40]!r}.")
        return json.dumps(found, indent=1, ensure_ascii=False)

    def _version(self, experiment: str, name: str) -> str:
        folder = self._folder(experiment) / "candidates"
        found = sorted(folder.glob(f"{name}.*")) if VERSION.fullmatch(name) else []
        if not found:
            raise ResourceNotFoundError(f"experiment {experiment!r} keeps no version {name[:40]!r} of the kernel.")
        return self._data(experiment, f"candidates/{found[0].name}").decode("utf-8", errors="replace")

    def _folder(self, experiment: str) -> Path:
        from kopt_mcp.experiments import NAME, begun  # late: it is not needed to list what there is

        folder = self._root / experiment
        usable = NAME.fullmatch(experiment) and not folder.is_symlink() and begun(folder / "journal.jsonl")
        if not usable:
            raise ResourceNotFoundError(
                f"experiment {experiment[:100]!r} is not known; log lists those that there are."
            )
        return folder

    def _data(self, experiment: str, path: str) -> bytes:
        folder = self._folder(experiment)
        missing = ResourceNotFoundError(f"experiment {experiment!r} has no file {path[:200]!r}.")
        try:
            file = (folder / path).resolve(strict=True)
            inside = file.is_relative_to(folder.resolve()) and file.name != ".lock"
            if not inside or not stat.S_ISREG(file.stat().st_mode):
                raise missing
            # Not followed nor waited for, should somebody have put a link or a pipe there since.
            with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
                data = opened.read(MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            raise missing from error
        if len(data) > MOST_BYTES:
            raise ResourceError(f"{path} has more than {MOST_BYTES} bytes; open {file} where it lies.")
        return data


def _certificates(data: Any) -> Iterator[dict[str, Any]]:
    """Every certificate in an event's data, wherever it is kept there."""
    if isinstance(data, list):
        for inner in data:
            yield from _certificates(inner)
    elif isinstance(data, dict):
        for name, inner in data.items():
            if name == "certificate" and isinstance(inner, dict):
                yield inner
            else:
                yield from _certificates(inner)
