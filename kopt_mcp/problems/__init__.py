"""Other people's tasks and kernels: recognise what a file is without running it, and make a `Problem` of it.

Two steps in two processes. `recognise` runs in the server: it reads files (standard library, and PyYAML where a format
needs it) and never executes one. `load` runs in the harness, under the user's own interpreter, where a `test_*.py` is
executed too: it may execute the task's files and has torch, the standard library, and nothing else. Between the two
goes the text of a small problem file (`source`) that names the format, every file of the task with its SHA-256, and the
options that were read in the server: for all that comes after, a foreign task is a problem file like any other.

A format is a module here with

    NAME: str                                   what `format=` calls it
    EXPECTED: str                               what a file of this format looks like, in a clause
    recognise(path) -> Recognition | str        the text says why the path is not of this format, file and field named;
                                                raising ProblemError says the same
    load(path, *, kernel=None, **options) -> Problem
    written(recognition, out) -> str            optional: the text that `kopt-mcp import` writes, where `source` is not
                                                what a user would want to own

and a candidate that is not called with our flat arguments has an adapter (`kopt_mcp.problems.adapters`).
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from kopt_mcp.problem import Problem, ProblemError
from kopt_mcp.problems.reading import digest_of

FORMATS = {
    "problem": "own",
    "script": "scripts",
    "kernelbench": "kernelbench",
    "gpumode": "gpumode",
    "autokernel": "autokernel",
    "flashinfer": "flashinfer",
}
"""The formats that are recognised, and the module of each."""
LOADED_ONLY = {"functions": "functions"}
"""Formats that no file has: they are told in arguments."""


class Unrecognised(ProblemError):
    """A path is of no format that is known, or not of the one that was told; each one's reason."""


_LOADED: list[str] = []
"""The tasks that were loaded in this process."""


@dataclass(frozen=True)
class Recognition:
    """What a path was found to be, before anything of it has run."""

    format: str
    path: Path
    """Where the task is entered: its main file, also where a folder was named."""
    files: tuple[Path, ...]
    """Every file that the task consists of, `path` first, the kernel never: a change of one is a change of the task.
    Python modules of the task's own that these import are found by whoever hashes them."""
    found: tuple[str, ...]
    """Facts that make it one of this format, for a reader: `class Model, line 12`."""
    missing: tuple[str, ...] = ()
    """What it lacks to be complete: file, field and what was expected. Empty when it can be loaded."""
    name: str = ""
    """The task's name, as far as can be told; the file's stem otherwise."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for `load`, as JSON: what was read with libraries that the harness does not have."""
    kernel: Path | None = None
    """The kernel that the task brings along, if it does."""
    trust: Literal["measured", "reported"] = "measured"
    """`reported`: nothing of it can be measured here, its own numbers are taken."""


def recognise(path: Path, told: str | None = None) -> Recognition:
    """Say what a path is. Nothing of it is executed.

    Args:
        told: the format, where the user says it; the others are then not asked.

    Raises:
        Unrecognised: no format fits.
        ProblemError: several do, or the format that is told is not known.
    """
    answers = {name: _asked(name, path) for name in ([_known(told)] if told else FORMATS)}
    yes = [one for one in answers.values() if isinstance(one, Recognition)]
    complete = [one for one in yes if not one.missing]
    fitting = complete or yes
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        said = "; ".join(f"{one.format} ({', '.join(one.found)})" for one in fitting)
        raise ProblemError(f"{path.name} could be several formats: {said}; say which with format=.")
    reasons = "; ".join(f"{name}: {why}" for name, why in answers.items())
    raise Unrecognised(f"{path.name} is of no format that is known: {reasons}")


def load(path: Path, told: str | None = None, *, kernel: Path | None = None) -> Problem:
    """Recognise a task and make a `Problem` of it; its files are executed.

    Raises:
        ProblemError: see `recognise`; or it is not complete, or cannot be expressed as a problem: file, field, reason.
    """
    found = complete(recognise(path, told))
    problem = module(found.format).load(found.path, kernel=kernel or found.kernel, **found.options)
    return _with_kernel(problem, kernel or found.kernel)


def complete(found: Recognition) -> Recognition:
    """The recognition, if the task can be loaded.

    Raises:
        ProblemError: it lacks something.
    """
    if found.missing:
        raise ProblemError(
            f"{found.path.name} was recognised as {found.format} ({', '.join(found.found)}), but it is not complete: "
            f"{'; '.join(found.missing)}"
        )
    return found


def source(found: Recognition, base: Path, kernel: Path | None = None) -> str:
    """The text of a problem file, to lie in the folder `base`, that loads this task as it is now.

    Raises:
        ProblemError: a file of the task cannot be read any more.
    """
    files = {_relative(path, base): digest_of(path) for path in found.files}
    hashes = "".join(f"        {_quoted(name)}: {_quoted(sha)},\n" for name, sha in files.items())
    task = found.path.name if files else found.name
    own = kernel or found.kernel
    lines = [
        f'"""{_words(task)}, a task of the format {found.format}. A file of it that changes is refused."""',
        "",
        "from kopt_mcp.problems import opened",
        "",
        "PROBLEM = opened(",
        "    __file__,",
        f"    format={_quoted(found.format)},",
        f"    path={_quoted(_relative(found.path, base))},",
        f"    files={{\n{hashes}    }}," if files else "    files={},",
        f"    kernel={_quoted(_relative(own, base)) if own else None},",
        f"    options={_literal(dict(found.options), 4)},",
        ")",
        "test_kernel = PROBLEM.as_test()",
        "",
        'if __name__ == "__main__":',
        "    raise SystemExit(PROBLEM.main())",
        "",
    ]
    return "\n".join(lines)


def opened(
    file: str,
    *,
    format: str,
    path: str,
    files: Mapping[str, str],
    kernel: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Problem:
    """The `Problem` of a task, for a problem file to declare; paths are relative to `file`.

    Raises:
        ProblemError: a file of the task is not the one that was hashed, or see `load`.
    """
    base = Path(file).resolve().parent
    for name, sha256 in files.items():
        now = digest_of(base / name)
        if now != sha256:
            raise ProblemError(
                f"{name} was {sha256[:12]} when the task was taken in and is {now[:12]}; times against another task "
                "cannot be compared; restore it, or take it in again (kopt-mcp import, or a new baseline)."
            )
    own = Path(os.path.normpath(base / kernel)) if kernel else None
    problem: Problem = module(format).load(Path(os.path.normpath(base / path)), kernel=own, **(options or {}))
    return _with_kernel(problem, own)


def may_have_computed() -> bool:
    """Whether a task was loaded in this process, which may have computed with torch: it must not be forked any more."""
    return bool(_LOADED)


@contextmanager
def beside(path: Path) -> Iterator[None]:
    """Let modules that lie beside `path` be imported, and forget them afterwards: two tasks may both have a `utils`."""
    before = set(sys.modules)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(folder + os.sep):
                del sys.modules[name]


def executed(path: Path, name: str = "task") -> ModuleType:
    """Execute a Python file of a task, with its folder on the path, and return it as a module. Harness only.

    Raises:
        ProblemError: it does not load; file, line and error are named.
    """
    made = ModuleType(name)
    made.__file__ = str(path)
    try:
        with beside(path):
            sys.modules[name] = made  # dataclasses and pickles look their module up
            exec(compile(path.read_bytes(), str(path), "exec"), made.__dict__)
    except Exception as error:
        frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = getattr(error, "lineno", None) or (frames[-1] if frames else None)
        raise ProblemError(f"{path.name} does not load: line {line}: {type(error).__name__}: {error}") from error
    finally:
        sys.modules.pop(name, None)
    return made


def module(name: str) -> Any:
    """The module of a format.

    Raises:
        ProblemError: there is no such format.
    """
    file = {**FORMATS, **LOADED_ONLY}[name if name in LOADED_ONLY else _known(name)]
    return importlib.import_module(f"{__name__}.{file}")


def _known(name: str) -> str:
    if name in FORMATS:
        return name
    near = difflib.get_close_matches(name.lower(), FORMATS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ProblemError(f"format {name[:40]!r} is not known; expected one of {', '.join(FORMATS)}{hint}")


def _asked(name: str, path: Path) -> Recognition | str:
    """One format's answer; a file that cannot even be read is not of it."""
    try:
        answer: Recognition | str = module(name).recognise(path)
    except ProblemError as error:
        return str(error)
    except RecursionError:
        return f"{path.name} is nested too deeply to be read."
    return answer


def _with_kernel(problem: Problem, kernel: Path | None) -> Problem:
    _LOADED.append(problem.name)
    return replace(problem, kernel=str(kernel)) if kernel else problem


def _relative(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path.resolve(), base.resolve())).as_posix()


def _literal(value: Any, indent: int) -> str:
    """A JSON value as Python, one entry a line."""
    if isinstance(value, str):
        return _quoted(value)
    if not isinstance(value, (dict, list, tuple)) or not value:
        return repr(value)
    inner = " " * (indent + 4)
    if isinstance(value, dict):
        entries = [f"{inner}{_literal(k, indent)}: {_literal(v, indent + 4)},\n" for k, v in value.items()]
        return "{\n" + "".join(entries) + " " * indent + "}"
    entries = [f"{inner}{_literal(v, indent + 4)},\n" for v in value]
    return "[\n" + "".join(entries) + " " * indent + "]"


def _quoted(text: str) -> str:
    """A text as Python, in double quotes where that is plain."""
    return f'"{text}"' if text.isascii() and text.isprintable() and not set(text) & set('"\\') else repr(text)


def _words(text: str) -> str:
    """A name that cannot end a docstring."""
    return "".join(c for c in text if c.isprintable() and c not in '"\\')[:120]
