"""The experiments of a project: which there are, where their files lie, and how a new one gets its name."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kopt_mcp.errors import JournalCorrupt, WorkspaceFailed
from kopt_mcp.events import Event
from kopt_mcp.journal import Journal
from kopt_mcp.lock import claimed
from kopt_mcp.models import Device
from kopt_mcp.phases import Experiment, fold
from kopt_mcp.workspace import Workspace

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
OURS = {".lock", "candidates", "journal.jsonl", "problem", "problem.py"}
VENDOR_WORDS = {"nvidia", "amd", "instinct", "geforce", "radeon", "tesla", "graphics", "accelerator", "r", "tm"}


class Experiments:
    """experiments/ of one project."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.folder = workspace.root / "experiments"
        self._journals: dict[str, Journal] = {}
        self._thread = threading.RLock()
        self._replayed: dict[str, tuple[list[Event], Experiment | None]] = {}  # what was folded, and into what

    def names(self) -> list[str]:
        """Every experiment that has begun, in alphabetical order."""
        self._inside()
        if not self.folder.is_dir():
            return []
        return sorted(p.name for p in self.folder.iterdir() if self.has(p.name))

    def has(self, name: str) -> bool:
        """Whether an experiment of this name has begun; any text may be asked for."""
        self._inside()
        folder = self.folder / name if NAME.fullmatch(name) else None
        return folder is not None and not folder.is_symlink() and begun(folder / "journal.jsonl")

    def journal(self, name: str) -> Journal:
        """The journal of an experiment; kept, so that what was verified once is not parsed again."""
        if name not in self._journals:
            self._journals[name] = Journal(self.folder / name / "journal.jsonl", self._workspace.disk)
        return self._journals[name]

    def replay(self, name: str) -> Experiment | None:
        """The state of an experiment; None while its baseline is not written.

        Raises:
            JournalCorrupt: the journal does not verify.
        """
        with self._thread:
            events = self.journal(name).read()
            done, state = self._replayed.get(name, ([], None))
            if events[: len(done)] != done:
                done, state = [], None
            state = fold(name, events[len(done) :], state)
            self._replayed[name] = events, state
            return state

    def states(self) -> Iterator[Experiment]:
        """The state of every experiment whose journal can be replayed."""
        for name in self.names():
            with suppress(JournalCorrupt, WorkspaceFailed):
                if (state := self.replay(name)) is not None:
                    yield state

    @contextmanager
    def claim(self, problem: str, device: Device) -> Iterator[str]:
        """Hold a name that no experiment has; its folder is taken away again if no baseline gets written in it."""
        self._inside()
        stem = f"{slug(problem)}-{short_name(device)}"
        number = 1
        while True:
            name = f"{stem}-{number}"
            folder = self.folder / name
            if self._free(folder):
                self._workspace.disk.make_folder(folder)
                with claimed(folder / ".lock") as ours:
                    if ours and self._free(folder):
                        try:
                            yield name
                        finally:
                            if self._free(folder):
                                self._workspace.disk.remove_folder(folder)
                        return
            number += 1

    def _free(self, folder: Path) -> bool:
        """New, or what a baseline left that was killed: nothing in it but our own files, and no whole event."""
        if folder.is_symlink():
            return False
        if not folder.exists():
            return True
        return folder.is_dir() and not begun(folder / "journal.jsonl") and {p.name for p in folder.iterdir()} <= OURS

    def _inside(self) -> None:
        if not self.folder.resolve().is_relative_to(self._workspace.root):
            raise WorkspaceFailed("experiments/ leads out of the project; nothing is written there; make it a folder.")


def begun(journal: Path) -> bool:
    """Whether a journal holds a whole line; anything less is a baseline that was never written."""
    if not journal.is_file():
        return False
    with journal.open("rb") as file:
        return file.readline().endswith(b"\n")


def slug(text: str) -> str:
    """Letters, digits and dashes only, at most 40 of them."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "kernel"


def short_name(device: Device) -> str:
    """`h200` for NVIDIA H200, `rtx-4090` for NVIDIA GeForce RTX 4090, `cpu` for any CPU."""
    if device.platform == "cpu":
        return "cpu"
    words = [w for w in slug(device.name).split("-") if w not in VENDOR_WORDS]
    return "-".join(words)[:24].strip("-") or device.platform
