"""The command line of other people's tasks: `import`, and the problem that `evaluate` is told in any format.

Most of what is needed is imported late: every start of the server builds the command line.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kopt_mcp.errors import InputRefused, ProblemInvalid, WorkspaceFailed
from kopt_mcp.evaluator.client import Evaluator
from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import FORMATS, Recognition, Unrecognised, complete, recognise, source
from kopt_mcp.problems.reading import bytes_of, digest_of, slug
from kopt_mcp.problems.script import HOW_TO_MEASURE
from kopt_mcp.project import Project
from kopt_mcp.tracing import kernel_of, require_same


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `import`."""
    parser = commands.add_parser(
        "import",
        help="say what a task of another format is, and write its problem file",
        description="Recognise a task, say what was found and what is missing, and write a problem file for it: a test "
        "and a command of its own, which refuses the task once its files change. Nothing of the task is executed.",
    )
    parser.add_argument("path", type=Path, help="the task's file or folder; with --reference, the kernel")
    parser.add_argument("--format", choices=sorted(FORMATS), default=None, help="instead of recognising it")
    parser.add_argument("--kernel", type=Path, default=None, help="the kernel that the file tries by default")
    parser.add_argument("--out", type=Path, default=None, help="the file to write (default: test_<task>.py, here)")
    parser.add_argument("--force", action="store_true", help="overwrite it")
    add_functions(parser)
    parser.set_defaults(run=run)


def add_functions(parser: argparse.ArgumentParser) -> None:
    """Register how plain functions are told instead of a task's file."""
    parser.add_argument("--reference", default=None, help="module:function, as in torch:softmax(dim=-1)")
    parser.add_argument(
        "--shape", action="append", default=[], help="inputs of a workload, as in 4096x4096; repeatable"
    )
    parser.add_argument(
        "--dtype", action="append", default=[], help="type of the tensors (default: float32); repeatable"
    )


def run(options: argparse.Namespace) -> int:
    """Carry out `import`; the exit status is 0 only if the task is complete."""
    try:
        found = _told(options, options.path)
        print("\n".join(_described(found)))
        if found.missing:
            return 1
        if found.format == "problem":
            print(f"\n{found.path} is a problem file as it is: name it as test_path.")
            return 0
        out = options.out or Path(f"test_{slug(found.name or found.path.stem).replace('-', '_')}.py")
        text = _text(found, out, options.kernel or found.kernel)
    except ProblemError as error:
        raise ProblemInvalid(str(error)) from error
    if text is not None:
        _write(out, text, options.force)
        todo = "complete it" if found.trust == "reported" else f"try it with `python {out} --json`"
        print(f"\nwrote {out}: {todo}, then name it as test_path in baseline.")
    return 0


@dataclass(frozen=True)
class Given:
    """What a command was told to evaluate, and who is to do it."""

    problem: Path
    problem_sha256: str
    kernel: Path
    evaluator: Evaluator
    found: Recognition | None = None
    """The task, where it was taken in."""


@contextmanager
def given(project: Project, options: argparse.Namespace) -> Iterator[Given]:
    """The problem of `evaluate`, whatever its format, as a problem file.

    Raises:
        InputRefused: neither a problem nor a reference, or both, are told.
        ProblemInvalid: the problem is of no format, or not complete.
    """
    if (options.problem is None) == (options.reference is None):
        raise InputRefused("give either --problem FILE, or --reference FUNCTION with --shape; one problem is needed.")
    if options.problem is not None and (options.shape or options.dtype):
        raise InputRefused("--shape and --dtype are for a --reference; a problem has its own; leave them out.")
    doubts: list[str] = []
    try:
        with tempfile.TemporaryDirectory(prefix="kopt-task-") as folder:
            yield _given(project, options, Path(folder), doubts)
    except ProblemError as error:
        raise ProblemInvalid(str(error)) from error
    except ProblemInvalid as error:
        if not doubts or "SyntaxError" in str(error):
            raise
        raise ProblemInvalid(
            f"{str(error).rstrip('.')}. It was taken for a problem file because {doubts[0]}"
        ) from error


def _given(project: Project, options: argparse.Namespace, folder: Path, doubts: list[str]) -> Given:
    kernel = kernel_of(_kernel_file(options.kernel), folder)
    found = _for_evaluation(options, doubts)
    require_same(options.kernel, found)
    if found is None:
        return Given(options.problem.resolve(), digest_of(options.problem), kernel, project.evaluator)
    if found.trust == "reported":
        return Given(found.path.resolve(), digest_of(found.path), kernel, _reported(project, found, kernel))
    file = folder / "problem.py"
    file.write_text(source(found, folder, kernel), encoding="utf-8")
    return Given(file, digest_of(file), kernel, project.evaluator, found)


def _for_evaluation(options: argparse.Namespace, doubts: list[str]) -> Recognition | None:
    """What has to be taken in first; None for a problem file, and for one that only the evaluator can refuse, of which
    `doubts` is then told why it may be none."""
    if options.reference is not None:
        return _told(options, Path(str(options.kernel)))
    try:
        found = complete(recognise(options.problem, options.format))
    except Unrecognised as error:
        if options.format is None and options.problem.suffix == ".py":
            doubts.append(str(error))
            return None
        raise
    return None if found.format == "problem" else found


def _told(options: argparse.Namespace, path: Path) -> Recognition:
    """The task that a command names."""
    if options.reference is None:
        if options.shape or options.dtype:
            raise InputRefused("--shape and --dtype are given without --reference; a task has its own; leave them out.")
        if not path.exists():
            raise InputRefused(f"{path} does not exist; there is nothing to recognise; check the path.")
        return recognise(path if path.name else path.resolve(), options.format)
    from kopt_mcp.problems import functions
    from kopt_mcp.source import entry_of
    from kopt_mcp.workspace import decode

    kernel = _kernel_file(path)
    name = str(path).rpartition(".py:")[2] if ".py:" in str(path) else ""
    wanted = functions.place(options.reference).name
    if not name:
        body = decode(kernel.read_bytes(), kernel.name).body if kernel.is_file() else ""
        name = wanted if not body or f"def {wanted}(" in body else entry_of(body, kernel.name)[0]
    return functions.recognised(options.reference, options.shape, options.dtype, name, Path.cwd(), kernel.resolve())


def _kernel_file(path: Path) -> Path:
    """`softmax.py:softmax` without its function."""
    file, colon, _ = str(path).rpartition(".py:")
    return Path(f"{file}.py") if colon else path


def _described(found: Recognition) -> list[str]:
    lines = [f"{found.path}: {found.format}" + (f", {found.name!r}" if found.name else "")]
    lines += [f"  found    {fact}" for fact in found.found]
    lines += [f"  file     {path}" for path in found.files if path != found.path]
    lines += [f"  missing  {text}" for text in found.missing]
    if found.trust == "reported":
        lines.append(f"  trust    reported: it judges and times the kernel itself. {HOW_TO_MEASURE}")
    return lines


def _text(found: Recognition, out: Path, kernel: Path | None) -> str | None:
    """What is to be written; None where nothing can be, which has been said."""
    if found.trust == "reported":
        from kopt_mcp.scaffold import scaffold
        from kopt_mcp.workspace import decode

        if kernel is None:
            print("\nnothing written: name the kernel with --kernel for a problem file to complete.")
            return None
        return scaffold(kernel.name, decode(bytes_of(kernel), kernel.name).body)
    return source(found, out.parent, kernel)


def _write(out: Path, text: str, force: bool) -> None:
    try:
        with out.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputRefused(f"{out} exists; nothing is overwritten; name another with --out, or give --force.") from None
    except OSError as error:
        raise WorkspaceFailed(f"{out} cannot be written: {error.strerror}; name another with --out.") from error


def _reported(project: Project, found: Recognition, kernel: Path) -> Evaluator:
    """Who runs a script; both it and the kernel must lie in the project, which is laid out for it."""
    from kopt_mcp.evaluator.reported import ReportedEvaluator
    from kopt_mcp.evaluator.script_run import Script, ScriptProcess
    from kopt_mcp.workspace import Workspace

    space = Workspace(project.root)
    files = [path.resolve() for path in (found.path, kernel)]
    for path in files:
        if not path.is_relative_to(project.root):
            raise InputRefused(f"{path} lies outside the project {project.root}; name its folder with --root.")
    hashes = space.problem_files(files[0], files[1])
    script = Script(project.root, space.relative(files[0]), space.relative(files[1]), hashes)
    return ReportedEvaluator(project.evaluator, ScriptProcess(project.python), script)
