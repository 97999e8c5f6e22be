"""Compile caches, kept apart by candidate."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_INDEX = re.compile(r"__grp__.*\.json")
"""Names of Triton's lists of what belongs to a compiled kernel: by absolute paths, so that it would be compiled again
where the cache is a copy."""
_DEEPEST, _MOST_BYTES = 32, 1 << 30
"""Folders in folders that are copied, and bytes."""


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
        """Take over what a runner of this candidate has added to its cache.

        By descriptors of folders that are no links: it may still run, and put a link to anywhere in a folder's place.
        """
        kept = self._folder / sha256
        with self._lock, contextlib.suppress(OSError):
            kept.mkdir(parents=True, exist_ok=True)
            with _opened(source) as theirs, _opened(kept) as ours:
                _move_new(theirs, ours)
                for kind in os.listdir(theirs):  # what is left of Triton's folder and the like: entries are artefacts
                    with contextlib.suppress(OSError), _opened(kind, theirs) as inner, _opened(kind, ours) as target:
                        _move_new(inner, target)


def copied(source: Path, target: Path) -> None:
    """Copy a compile cache to where nothing runs yet, and make it usable there: as far as that goes.

    Links stay links, since whatever they point at is not the candidate's.
    """
    with contextlib.suppress(OSError, shutil.Error, RecursionError):
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=_unfit(source))
    for folder, _, names in os.walk(target):
        paths = {name: Path(folder) / name for name in names}
        for name in filter(_INDEX.fullmatch, names):
            children = {child: str(path) for child, path in paths.items() if child != name}
            with contextlib.suppress(OSError):
                if not paths[name].is_symlink():
                    paths[name].write_text(json.dumps({"child_paths": children}), encoding="utf-8")


def _unfit(source: Path) -> Callable[[str, list[str]], list[str]]:
    """Which entries of a folder are not copied: all, where compilers put nothing and a recursion may not end, and files
    that are too large for what is left: some have gigabytes without taking a block, until they are copied."""
    least, left = len(source.parts), _MOST_BYTES

    def unfit(folder: str, names: list[str]) -> list[str]:
        nonlocal left
        if len(Path(folder).parts) > least + _DEEPEST:
            return names
        found = []
        for name in names:
            if (size := os.lstat(os.path.join(folder, name)).st_size) > left:
                found.append(name)
            else:
                left -= size
        return found

    return unfit


@contextlib.contextmanager
def _opened(folder: Path | str, parent: int | None = None) -> Iterator[int]:
    """A descriptor of a folder; OSError where that is a link, or no folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _move_new(source: int, target: int) -> None:
    """Move those entries of a folder that the other does not have; a link is moved as a link."""
    for name in set(os.listdir(source)) - set(os.listdir(target)):
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
