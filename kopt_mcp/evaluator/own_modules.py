"""Modules of the user's own that a problem file imports: from their source as it is now, and noted.

The harness lives for hours, and judges by what it has loaded. A module that has changed since, or has the name of
another problem's, must not be taken for the one that lies there; nor compiled code or a library beside it, which nobody
has read or hashed. What the interpreter and its packages bring is imported as ever.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType
from typing import TypeVar

from kopt_mcp.evaluator import sandbox

_PACKAGE = Path(__file__).resolve().parent.parent
T = TypeVar("T")
Noted = dict[str, tuple[str, str]]
"""By the name of a module, its file and the hash of that."""
_noted: Noted = {}
"""Since the last load began."""
_added: list[str] = []
"""What that put on the path."""


class _FromSource(SourceFileLoader):
    """Never from a `__pycache__`: whoever writes there decides what runs, whatever the source says."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        data = self.get_data(path)
        _noted[fullname] = path, sha256(data).hexdigest()
        return self.source_to_code(data, path)


def noting(load: Callable[[], T]) -> tuple[T, Noted]:
    """What `load` makes, and the modules that it imports, now or later: those of whatever was loaded before it are
    forgotten, and so are their places on the path."""
    global _noted
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.clear()
    for name in _noted:
        sys.modules.pop(name, None)
    sys.path[:] = before = [entry for entry in sys.path if entry not in _added]
    importlib.invalidate_caches()
    noted = _noted = {}
    try:
        return load(), noted
    finally:
        _added[:] = [entry for entry in sys.path if entry not in before]


def imported() -> bool:
    """Whether such modules are in this process's memory."""
    return bool(_noted)


def unchanged(noted: Noted) -> bool:
    """Whether these files are still what was imported from them."""
    return all(_hash(path) == then for path, then in noted.values())


def _hash(path: str) -> str:
    try:
        return sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _finder(entry: str) -> FileFinder:
    """What finds modules in a folder of the user's own; ImportError for all other places."""
    folder = Path(entry or ".").resolve()
    others = [str(_PACKAGE), *sandbox.interpreter_folders()]
    if not folder.is_dir() or any(folder.is_relative_to(other) for other in others):
        raise ImportError(f"{entry} is not the user's own", path=entry)
    return FileFinder(entry, (_FromSource, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES))
