"""Compile caches, kept apart by candidate."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path


class Caches:
    """Compile caches by candidate: what its own runners left there, and lent to no other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def lend(self, sha256: str, target: Path) -> None:
        """Copy what is kept of a candidate; links stay links, since whatever they point at is not the candidate's."""
        with self._lock, contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(self._folder / sha256, target, symlinks=True, dirs_exist_ok=True)

    def keep(self, sha256: str, source: Path) -> None:
        """Take over what a runner of this candidate has added to its cache."""
        with self._lock, contextlib.suppress(OSError):
            kept = self._folder / sha256
            kept.mkdir(parents=True, exist_ok=True)
            _move_new(source, kept)
            for kind in source.iterdir():  # what is left of Triton's folder and the like: each entry is an artefact
                if kind.is_dir() and not kind.is_symlink() and not (kept / kind.name).is_symlink():
                    _move_new(kind, kept / kind.name)


def _move_new(source: Path, target: Path) -> None:
    """Move those entries of a folder that the other does not have; a link is moved as a link."""
    for entry in source.iterdir():
        if not os.path.lexists(target / entry.name):
            entry.rename(target / entry.name)
