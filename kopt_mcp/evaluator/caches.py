"""Compile caches, kept apart by candidate."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

_INDEX = re.compile(r"__grp__.*\.json")
"""Names of Triton's lists of what belongs to a compiled kernel: by absolute paths, so that it would be compiled again
where the cache is a copy."""
_DEEPEST = 32
"""Folders in folders that are copied."""


class Caches:
    """Compile caches by candidate: what its own runners left there, and lent to no other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def lend(self, sha256: str, target: Path) -> None:
        """Copy what is kept of a candidate."""
        with self._lock:
            copied(self._folder / sha256, target)

    def keep(self, sha256: str, source: Path) -> None:
        """Take over what a runner of this candidate has added to its cache."""
        with self._lock, contextlib.suppress(OSError):
            kept = self._folder / sha256
            kept.mkdir(parents=True, exist_ok=True)
            _move_new(source, kept)
            for kind in source.iterdir():  # what is left of Triton's folder and the like: each entry is an artefact
                if kind.is_dir() and not kind.is_symlink() and not (kept / kind.name).is_symlink():
                    _move_new(kind, kept / kind.name)


def copied(source: Path, target: Path) -> None:
    """Copy a compile cache to where nothing runs yet, and make it usable there: as far as that goes.

    Links stay links, since whatever they point at is not the candidate's.
    """
    with contextlib.suppress(OSError, shutil.Error, RecursionError):
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=_too_deep(source))
    for folder, _, names in os.walk(target):
        paths = {name: Path(folder) / name for name in names}
        for name in filter(_INDEX.fullmatch, names):
            children = {child: str(path) for child, path in paths.items() if child != name}
            with contextlib.suppress(OSError):
                if not paths[name].is_symlink():
                    paths[name].write_text(json.dumps({"child_paths": children}), encoding="utf-8")


def _too_deep(source: Path) -> Callable[[str, list[str]], list[str]]:
    """Which entries of a folder are not copied: all, where compilers put nothing and a recursion may not end."""
    least = len(source.parts)
    return lambda folder, names: names if len(Path(folder).parts) > least + _DEEPEST else []


def _move_new(source: Path, target: Path) -> None:
    """Move those entries of a folder that the other does not have; a link is moved as a link."""
    for entry in source.iterdir():
        if not os.path.lexists(target / entry.name):
            entry.rename(target / entry.name)
