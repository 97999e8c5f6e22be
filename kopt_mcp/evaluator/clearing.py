"""Delete what a candidate has left in a folder, whatever it made of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from itertools import count
from pathlib import Path


def remove(folder: Path) -> None:
    """Delete a folder with all that is in it, as far as that goes.

    What lies deep is lifted before it is deleted: neither a recursion nor a path gets longer by how deep it was.
    Nothing may be running any more that could write there.
    """
    names = (folder / f"{secrets.token_hex(8)}-{number}" for number in count())
    left: set[str] = set()
    while entries := [entry for entry in _entries(folder) if entry.path not in left]:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    for inner in _entries(entry.path):
                        _unlink_or(inner, next(names))
                    os.rmdir(entry.path)
                else:
                    os.unlink(entry.path)
            left.add(entry.path)  # if it could not be deleted, it is not tried again
    with contextlib.suppress(OSError):
        folder.rmdir()


def _unlink_or(entry: os.DirEntry[str], lifted: Path) -> None:
    """Delete a file, or move a folder."""
    if entry.is_dir(follow_symlinks=False):
        os.chmod(entry.path, stat.S_IRWXU)
        os.rename(entry.path, lifted)
    else:
        os.unlink(entry.path)


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """What lies in a folder; nothing where there is none."""
    with contextlib.suppress(OSError):
        os.chmod(folder, stat.S_IRWXU)
        with os.scandir(folder) as found:
            return list(found)
    return []
