"""Other people's tasks and kernels: recognise what a file is without running it, and make a `Problem` of it.

This module is the entry. A format is one module for each process that has to do with it, called by its name:

    problems/X.py           `EXPECTED`, what a file of this format looks like, and `recognise(path)`: a Recognition.
                            Raises Unlike where a file is nothing like that. In the server: reads files (standard
                            library, PyYAML for task.yml), never executes one.
    problems/loaders/X.py   `load(path, **options)`: the Problem. In the harness, under the user's own interpreter: may
                            execute the task's files, as a `test_*.py` is executed there; standard library and torch.
    problems/adapters/X.py  `entry(module, spec)`: how a candidate is called, where it is no function of our flat
                            arguments. In the candidate's process.

Between the first two goes the text of a small problem file (`source`), which names the format, every file of the task
with its SHA-256, and the options that were read in the server: for all that comes after, a foreign task is a problem
file like any other. Our own format and scripts that judge themselves need no loader; plain functions are told in
arguments, so that `functions.recognised` takes the place of recognising them. docs/formats has a page for each.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pprint
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kopt_mcp.problem import Problem, ProblemError
from kopt_mcp.problems.reading import Unlike, digest_of

FORMATS = ("problem", "script", "kernelbench", "gpumode", "autokernel", "flashinfer")
"""The formats that are recognised."""
LOADED = ("kernelbench", "gpumode", "autokernel", "flashinfer", "functions")
"""The formats that a problem file is written for."""


class Unrecognised(ProblemError):
    """A path is of no format that is known, or not of the one that was told; each one's reason."""


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
    if told:
        _require_known(told, FORMATS)
    if path.is_file() and not path.read_bytes().strip():
        raise ProblemError(f"{path.name} is empty; it has to say what the kernel computes, and on what.")
    answers = {name: _asked(name, path) for name in ([told] if told else FORMATS)}
    yes = [one for one in answers.values() if isinstance(one, Recognition)]
    fitting = [one for one in yes if not one.missing] or yes
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        said = "; ".join(f"{one.format} ({', '.join(one.found)})" for one in fitting)
        raise ProblemError(f"{path.name} could be several formats: {said}; say which with format=.")
    reasons = "; ".join(f"{name}: {why}" for name, why in answers.items())
    raise Unrecognised(f"{path.name} is of no format that is known: {reasons}.")


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
    kernel = kernel or found.kernel
    arguments = {
        "format": found.format,
        "path": _relative(found.path, base),
        "files": {_relative(path, base): digest_of(path) for path in found.files},
        "kernel": _relative(kernel, base) if kernel else None,
        "options": dict(found.options),
    }
    told = "".join(f"    {name}={_literal(value, len(name) + 5)},\n" for name, value in arguments.items())
    task = found.path.name if found.files else found.name
    title = "".join(c for c in task if c.isprintable() and c not in '"\\')[:120]  # it cannot end the docstring
    return f'''"""{title}, a task of the format {found.format}. A file of it that changes is refused."""

from kopt_mcp.problems import opened

PROBLEM = opened(
    __file__,
{told})
test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
'''


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
        ProblemError: a file of the task is not the one that was hashed; or the task does not load, or cannot be
            expressed as a problem: file, field, reason.
    """
    _require_known(format, LOADED)
    base = Path(file).resolve().parent
    for name, sha256 in files.items():
        now = digest_of(base / name)
        if now != sha256:
            raise ProblemError(
                f"{name} was {sha256[:12]} when the task was taken in and is {now[:12]}; times against another task "
                "cannot be compared; restore it, or take it in again (kopt-mcp import, or a new baseline)."
            )
    loader = importlib.import_module(f"{__name__}.loaders.{format}")
    problem: Problem = loader.load(Path(os.path.normpath(base / path)), **(options or {}))
    return replace(problem, kernel=os.path.normpath(base / kernel)) if kernel else problem


def may_have_computed() -> bool:
    """Whether a task may have computed with torch in this process, which must then not be forked any more."""
    return f"{__name__}.loaders" in sys.modules


def _asked(name: str, path: Path) -> Recognition | str:
    """One format's answer; a file that cannot even be read is not of it."""
    format = importlib.import_module(f"{__name__}.{name}")
    try:
        found: Recognition = format.recognise(path)
    except Unlike as error:
        return f"{error}; expected {format.EXPECTED}"
    except ProblemError as error:
        return str(error).rstrip(".")
    except RecursionError:
        return f"{path.name} is nested too deeply to be read"
    return found


def _require_known(name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ProblemError(f"format {name[:40]!r} is not known; expected one of {', '.join(known)}{hint}")


def _relative(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path.resolve(), base.resolve())).as_posix()


def _literal(value: Any, column: int) -> str:
    """A JSON value as Python, to begin in a column."""
    lines = pprint.pformat(value, width=118 - column, sort_dicts=False).splitlines()
    return f"\n{' ' * column}".join(lines)
