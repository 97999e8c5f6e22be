"""Runs a user's test script on one version of a kernel, shut in, in a folder laid out as the project is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kopt_mcp.errors import WorkspaceFailed
from kopt_mcp.evaluator.shut_in import ISOLATION_FILE, JOB_FILE, ScriptJob
from kopt_mcp.platforms.host import Ran
from kopt_mcp.platforms.launching import Launch, read_text
from kopt_mcp.platforms.launching import launch as launch_process
from kopt_mcp.watch import Watch


@dataclass(frozen=True)
class Script:
    """A test script in its project, and the kernel that it is about. Paths are relative to the project's root."""

    root: Path
    path: str
    kernel: str
    files: Mapping[str, str]
    """SHA-256 of the script and of the project's modules that it imports."""


class RunScript(Protocol):
    """Runs a script on one version of the kernel; raises only `Cancelled` and `WorkspaceFailed`."""

    def __call__(
        self, script: Script, candidate: Path, device: str, *, folder: Path, timeout_s: float, watch: Watch
    ) -> tuple[Ran, dict[str, str]]:
        """How it ended, and the isolation that was in force. `folder` is kept between runs of one version."""


class ScriptProcess:
    """Runs scripts under the user's interpreter, shut in."""

    def __init__(self, python: Callable[[], str], launch: Launch = launch_process) -> None:
        self._python = python
        self._launch = launch
        self._readable: dict[Path, list[str]] = {}
        """By folder; kept here, since a script writes in its folder."""

    def __call__(
        self, script: Script, candidate: Path, device: str, *, folder: Path, timeout_s: float, watch: Watch
    ) -> tuple[Ran, dict[str, str]]:
        """See `RunScript`."""
        tree = folder / "project"
        try:
            if folder not in self._readable:
                self._readable[folder] = _lay_out(script, candidate, tree)
            for name in (JOB_FILE, ISOLATION_FILE, "stdout", "stderr"):  # where the last run may have put a link
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise WorkspaceFailed(f"{error.filename} cannot be laid out for the script: {error.strerror}.") from error
        job = ScriptJob(
            arguments=(str(tree / script.path), "--json"),
            cwd=str(tree),
            readable=tuple(self._readable[folder]),
            writable=(str(folder),),
            cpu_s=int(timeout_s * (os.cpu_count() or 1)) + 10,
            environment={**_device_environment(device), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        ran = self._launch(job.command(self._python(), folder), folder=folder, timeout_s=timeout_s, watch=watch)
        isolation: dict[str, str] = {}
        with suppress(ValueError):
            isolation = json.loads(read_text(folder / ISOLATION_FILE) or "{}")
        return ran, isolation


def _lay_out(script: Script, candidate: Path, tree: Path) -> list[str]:
    """Build the project's look in `tree`: links to what is there, copies of the script's files, the candidate.

    Hidden files, experiments/, and links out of the project are left out. The original kernel is not among what may be
    read, so that a script that reaches for it by another way finds nothing, and not the wrong version.
    """
    copies = {name: script.root / name for name in script.files} | {script.kernel: candidate}
    return _link(script.root, tree, copies, "")


def _link(root: Path, target: Path, copies: Mapping[str, Path], below: str) -> list[str]:
    """Fill one folder of the layout, and those below it that hold a copy; returns what the links lead to."""
    target.mkdir()
    links: list[str] = []
    for entry in sorted((root / below).iterdir()):
        name = f"{below}{entry.name}"
        if name in copies:
            (target / entry.name).write_bytes(copies[name].read_bytes())
        elif entry.is_dir() and any(copy.startswith(f"{name}/") for copy in copies):
            links += _link(root, target / entry.name, copies, f"{name}/")
        elif not _left_out(root, entry, name):
            (target / entry.name).symlink_to(entry)
            links.append(str(entry))
    return links


def _left_out(root: Path, entry: Path, name: str) -> bool:
    hidden = entry.name.startswith(".") or name == "experiments"
    return hidden or not entry.resolve().is_relative_to(root)


def _device_environment(device: str) -> dict[str, str]:
    """Show the script the one GPU that is meant, or none. Its number counts what CUDA's mask leaves; on an AMD machine
    what HIP's own leaves, where it has one."""
    cuda = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    masks = {"CUDA_VISIBLE_DEVICES": cuda, "HIP_VISIBLE_DEVICES": os.environ.get("HIP_VISIBLE_DEVICES", cuda)}
    return {name: _shown(device, mask) for name, mask in masks.items()}


def _shown(device: str, mask: str) -> str:
    if device == "cpu":
        return ""
    index = int(device.partition(":")[2] or 0)
    visible = [v for v in mask.split(",") if v.strip()]
    return visible[index].strip() if index < len(visible) else str(index)
