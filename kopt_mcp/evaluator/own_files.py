"""Files of the user's own that a problem is made of: modules, from their source as it is now, and data that it reads.

The harness lives for hours, and judges by what it has loaded. What has changed since must not be taken for what lies
there; nor compiled code beside it, which nobody has read or hashed. Nor may a problem run or read the kernel that it
judges, which could then decide what is right. What the interpreter and its packages bring is imported as ever. Data are
seen where Python opens them (`open`, `numpy.load`, `torch.load`), in the project of the code that does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from hashlib import sha256
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar

from kopt_mcp.evaluator import sandbox

_PACKAGE = Path(__file__).resolve().parent.parent
JUDGED = (
    "is the kernel that is judged, which must not have a say in what is right, nor run where that is decided; "
    "leave it out of the problem"
)
T = TypeVar("T")
Noted = dict[str, str]
"""By path, the hash of what was in the file."""
_noted: Noted = {}
"""Since the last load began."""
_ran: set[str] = set()
"""Hash of each Python file that has run since, by whatever way."""
_made: set[str] = set()
"""Files that its own code has written since: what it reads of them it has put there itself."""
_problem = ""
"""Path of the problem that was loaded last."""
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


def noting(problem: str, load: Callable[[], T]) -> tuple[T, Noted]:
    """What `load` makes of this file, and what it imports and reads, now or later."""
    global _noted, _ran, _made, _problem
    _problem = problem
    _watch()
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.clear()
        SourceFileLoader.get_code = _from_source  # type: ignore[method-assign, assignment]
    noted = _noted = {}
    _ran, _made = set(), set()
    return load(), noted


def changed(noted: Noted) -> str:
    """The first of these files that is not what was imported or read any more; empty where all are."""
    return next((Path(path).name for path, then in noted.items() if _hash(path) != then), "")


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
    if event not in ("exec", "open") or os.getpid() != _watching:
        return
    if event == "open":
        _opened(*args)
    elif (path := str(getattr(args[0], "co_filename", ""))).endswith(".py"):
        _ran.add(found := _hash(path))
        _not_judged(path, found)


def _opened(given: object, mode: object, flags: object) -> None:
    """Note a file that the problem's own code reads."""
    if not isinstance(given, str | bytes) or not (reader := _reader()):
        return
    try:
        path, home = Path(os.fsdecode(given)).resolve(), _project(reader)
        own = path.is_relative_to(home) and _is_own(str(path.parent))
    except (OSError, RuntimeError, ValueError):  # who opens it is told so
        return
    if not own or any(part.startswith(".") for part in path.relative_to(home).parts):  # caches, and what tools keep
        return
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
        _made.add(str(path))
    elif (
        str(path) not in (*_made, str(Path(_problem).resolve())) and path.is_file()
    ):  # whoever asks has hashed that one
        _not_judged(str(path), found := _hash(str(path)))
        _noted.setdefault(str(path), found)


def _reader() -> str:
    """The file of the problem's code that is running, innermost first; none where we look at a file ourselves."""
    frame: FrameType | None = sys._getframe()
    found = ""
    while frame is not None:
        if frame.f_code is _hashed.__wrapped__.__code__:
            return ""
        name = frame.f_code.co_filename
        if not found and (name == _problem or name in _noted):
            found = name
        frame = frame.f_back
    return found


@cache
def _project(file: str) -> Path:
    """The repository that a file lies in; its folder, where it is in none."""
    folder = Path(file).resolve().parent
    return next((above for above in (folder, *folder.parents) if (above / ".git").exists()), folder)


def _not_judged(path: str, found: str) -> None:
    if found and found == _kernel:
        raise ImportError(f"{Path(path).name} {JUDGED}")


def _hash(path: str) -> str:
    try:
        now = os.stat(path)
    except OSError:
        return ""
    return _hashed(path, (now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns))


@lru_cache(1024)
def _hashed(path: str, state: tuple[int, ...]) -> str:
    """Anew for each state of a file: of data there may be a lot, and they are asked for again and again."""
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
