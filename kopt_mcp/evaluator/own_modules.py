"""Modules of the user's own that a problem file imports: from their source as it is now, and noted.

The harness lives for hours, and judges by what it has loaded. A module that has changed since must not be taken for the
one that lies there; nor compiled code beside it, which nobody has read or hashed. Nor may a problem run the kernel that
it judges, which could then decide what is right. What the interpreter and its packages bring is imported as ever.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
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
JUDGED = (
    "is the kernel that is judged, which must not have a say in what is right, nor run where that is decided; "
    "leave its import out of the problem"
)
T = TypeVar("T")
Noted = dict[str, str]
"""By a module's file, the hash of that."""
_noted: Noted = {}
"""Since the last load began."""
_ran: set[str] = set()
"""Hash of each Python file that has run since, by whatever way."""
_kernel = ""
"""Hash of what is being judged."""
_watching = 0
"""The process that sees what runs in it: those that are forked from it run candidates."""


_as_ever = SourceFileLoader.get_code


def _from_source(loader: SourceFileLoader, fullname: str) -> CodeType | None:
    """Never from a `__pycache__`: whoever writes there decides what runs, whatever the source says.

    All ways to a module's source come through here: the path, an editable install's own finder, a loader by hand.
    """
    path = loader.get_filename(fullname)
    if not _is_own(str(Path(path).resolve().parent)):
        return _as_ever(loader, fullname)
    data = loader.get_data(path)
    _noted[path] = sha256(data).hexdigest()
    return loader.source_to_code(data, path)


def noting(load: Callable[[], T]) -> tuple[T, Noted]:
    """What `load` makes, and the modules that it imports, now or later."""
    global _noted, _ran
    _watch()
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.clear()
        SourceFileLoader.get_code = _from_source  # type: ignore[method-assign, assignment]
    noted = _noted = {}
    _ran = set()
    return load(), noted


def unchanged(noted: Noted) -> bool:
    """Whether these files are still what was imported from them."""
    return all(_hash(path) == then for path, then in noted.items())


def ran() -> set[str]:
    """Hashes of the Python files that have run since the last load began."""
    return _ran


@contextmanager
def judging(kernel: str) -> Iterator[None]:
    """Refuse to run a file of this hash meanwhile, with an ImportError."""
    global _kernel
    _kernel = kernel
    try:
        yield
    finally:
        _kernel = ""


def _watch() -> None:
    global _watching
    if not _watching:  # for good: what Python is told to audit stays so
        sys.addaudithook(_audited)
    _watching = os.getpid()


def _audited(event: str, args: tuple[object, ...]) -> None:
    path = str(getattr(args[0], "co_filename", "")) if event == "exec" else ""
    if not path.endswith(".py") or os.getpid() != _watching:
        return
    _ran.add(found := _hash(path))
    if found and found == _kernel:
        raise ImportError(f"{Path(path).name} {JUDGED}")


def _hash(path: str) -> str:
    try:
        return sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _finder(entry: str) -> FileFinder:
    """What finds modules in a folder of the user's own; ImportError for all other places."""
    folder = Path(entry or ".").resolve()
    if not folder.is_dir() or not _is_own(str(folder)):
        raise ImportError(f"{entry} is not the user's own", path=entry)
    return FileFinder(entry, (SourceFileLoader, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES))


@cache
def _is_own(folder: str) -> bool:
    others = [str(_PACKAGE), *sandbox.interpreter_folders()]
    return not any(Path(folder).is_relative_to(other) for other in others)
