"""What the kernel is to compute: the user's problem file, or a task of another format, taken in as one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kopt_mcp.arguments import shown
from kopt_mcp.config import Config
from kopt_mcp.disk import digest
from kopt_mcp.errors import InputRefused, ProblemInvalid, ToolUnavailable
from kopt_mcp.evaluator.client import Evaluator
from kopt_mcp.evaluator.records import Trust
from kopt_mcp.evaluator.reported import ReportedEvaluator
from kopt_mcp.evaluator.script_run import RunScript, Script
from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import Recognition, Unrecognised, complete, functions, recognise, source
from kopt_mcp.problems.reading import digest_of
from kopt_mcp.source import entry_of
from kopt_mcp.watch import Watch
from kopt_mcp.workspace import Workspace

FILE = "problem.py"
"""Of an experiment: the problem file that is written for a task of another format."""


@dataclass(frozen=True)
class Task:
    """A task, before or after a problem file was written for it."""

    format: str
    test: Path
    """The problem file, or where the task is entered while there is none."""
    files: dict[str, str]
    """Hash of everything that the task consists of, by path in the project; never the kernel."""
    trust: Trust = "measured"
    foreign: Recognition | None = None
    """What a problem file has to be written for."""
    seen: dict[str, str] = field(default_factory=dict)
    """Hash of what it was seen to import or read by ways that its text does not tell, by path in the project."""
    doubt: str = ""
    """Why no other format fits, where it is not certain that the file is a problem."""

    @property
    def sha256(self) -> str:
        """One hash for the whole task, whatever file is entered first."""
        return digest(repr((self.format, sorted(self.files.items()), self.test)).encode())

    @contextmanager
    def opened(self, space: Workspace) -> Iterator[tuple[Path, str]]:
        """The problem file and its hash; one that does not exist yet lies in a folder of its own meanwhile."""
        if self.foreign is None:
            yield self.test, self.files[space.relative(self.test)]
            return
        with tempfile.TemporaryDirectory(prefix="kopt-task-") as name:
            file = Path(name) / FILE
            file.write_bytes(_text(self.foreign, file.parent))
            yield file, digest(file.read_bytes())

    def settled(self, space: Workspace, folder: Path) -> Task:
        """The same task with its problem file, which lies in an experiment's folder from here on.

        Raises:
            WorkspaceFailed: the disk refuses.
        """
        if self.foreign is None:
            return self
        file = folder / FILE
        data = _text(self.foreign, folder)
        space.disk.replace(file, data, mode=0o644)
        files = dict(sorted({**self.files, space.relative(file): digest(data)}.items()))
        return replace(self, test=file, files=files, foreign=None)


def take(space: Workspace, config: Config, kernel: Path, body: str) -> Task:
    """Find the task that a configuration means, without running anything of it.

    Raises:
        InputRefused: there is none, or a path is not usable.
        ProblemInvalid: it is of no format, of several, or not complete.
    """
    try:
        if config.reference is not None:
            return _foreign(space, _functions(space, config, kernel, body), kernel)
        path = _entrance(space, config, kernel)
        try:
            found = complete(recognise(path, config.format))
        except Unrecognised as error:
            if path.suffix != ".py" or config.format is not None:
                raise
            test = space.test(config.test_path, kernel)
            return Task("problem", test, space.problem_files(test, kernel), doubt=str(error))
    except ProblemError as error:
        raise ProblemInvalid(str(error)) from error
    if found.format in ("problem", "script"):
        return Task(found.format, found.path, space.problem_files(found.path, kernel), found.trust)
    return _foreign(space, found, kernel)


def evaluator(
    measuring: Evaluator,
    scripts: RunScript | None,
    root: Path,
    kernel: str,
    trust: Trust,
    test: str,
    files: dict[str, str],
    watch: Watch | None = None,
) -> Evaluator:
    """Who judges and times the kernel for a task.

    Raises:
        ToolUnavailable: it is a script, and this server cannot run any.
    """
    if trust == "measured":
        return measuring
    if scripts is None:
        raise ToolUnavailable(f"{test} is a script that judges itself; this server was built without a way to run one.")
    return ReportedEvaluator(measuring, scripts, Script(root, test, kernel, files), watch)


def _functions(space: Workspace, config: Config, kernel: Path, body: str) -> Recognition:
    where = functions.place(config.reference or "")
    entry = config.entry or _own_function(body, kernel.name, where.name)
    return functions.recognised(config.reference or "", config.shapes, config.dtypes, entry, space.root, kernel)


def _own_function(body: str, name: str, reference: str) -> str:
    """The kernel's function: named like the reference where there is such a one, else its first public one."""
    return reference if f"def {reference}(" in body else entry_of(body, name)[0]


def _entrance(space: Workspace, config: Config, kernel: Path) -> Path:
    """Where the task is entered: what is named, the test beside the kernel, or the kernel's own file."""
    if config.test_path is not None:
        return _named(space, config.test_path)
    try:
        return space.test(None, kernel)
    except InputRefused:
        try:
            found = recognise(kernel, config.format)
        except ProblemError:
            found = None
        if found is None or found.format in ("problem", "script"):
            raise
        return kernel


def _named(space: Workspace, given: str) -> Path:
    """A file or, since some tasks are folders, a folder of the project."""
    if given and "\0" not in given:
        try:
            path = (space.root / given).resolve()
            if path.is_dir() and path.is_relative_to(space.root):
                return path
        except (OSError, RuntimeError, ValueError):
            pass  # `resolve` says what is wrong with it
    return space.resolve(given, "test_path")


def _foreign(space: Workspace, found: Recognition, kernel: Path) -> Task:
    """A task of another format, with the hash of each of its files, and of what they import."""
    files: dict[str, str] = {}
    for path in found.files:
        real = path.resolve()
        if not real.is_relative_to(space.root):
            raise InputRefused(f"{shown(str(path))} lies outside the project, and is a part of the task; move it in.")
        if real == kernel:
            continue
        files |= space.problem_files(real, kernel) if real.suffix == ".py" else {space.relative(real): digest_of(real)}
    found = replace(found, kernel=kernel)
    return Task(found.format, found.path, dict(sorted(files.items())), found.trust, found)


def _text(found: Recognition, folder: Path) -> bytes:
    try:
        return source(found, folder).encode()
    except ProblemError as error:
        raise ProblemInvalid(str(error)) from error
