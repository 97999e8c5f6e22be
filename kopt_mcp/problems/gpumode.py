"""GPU MODE: a folder with `task.yml`, and the files that it names; a candidate defines `custom_kernel(data)`.

`reference.py` has `generate_input(**test)`, `ref_kernel(data)` and `check_implementation(data, output)`. Inputs are
drawn by the task's own function, at the sizes of its tests and benchmarks, under seeds of ours. Outputs are judged
twice: by our comparison with the reference in float64, and by the task's own check; both must let them pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from kopt_mcp.problem import Problem, ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import defined, field, text_of, tree_of

NAME = "gpumode"
EXPECTED = "a folder with a task.yml that lists files, tests and benchmarks"
FILE = "task.yml"
SUBMISSION = "@SUBMISSION@"
FUNCTIONS = ("generate_input", "ref_kernel", "check_implementation")
MOST = 200
"""Tests and benchmarks of one task; the largest public ones have forty."""
_UP = 2
"""Folders above the task's own in which its files may lie."""
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
_KEYS = {"files", "tests"}


def recognise(path: Path) -> Recognition | str:
    """Whether a folder, or a file of that name, is a `task.yml` that lists files and tests."""
    main = path / FILE if path.is_dir() else path
    if main.suffix not in (".yml", ".yaml"):
        return f"{path.name} is neither a folder nor a {FILE}; expected {EXPECTED}."
    if not main.exists():
        return f"{path.name} holds no {FILE}; expected {EXPECTED}."
    task = _yaml(main)
    if not isinstance(task, dict) or not _KEYS & set(task):
        return f"{main.name} has neither 'files' nor 'tests'; expected {EXPECTED}."
    missing: list[str] = []
    files = _checked(lambda: _files(main, task), {}, missing)
    tests = _checked(lambda: _tests(main, task, "tests"), [], missing)
    benchmarks = _checked(lambda: _tests(main, task, "benchmarks"), [], missing) if "benchmarks" in task else []
    if not missing and task.get("lang", "py") != "py":
        missing.append(f"{main.name}: field 'lang' is {str(task['lang'])[:40]!r}; expected 'py': a kernel in Python")
    missing += _lacking(main, files)
    return Recognition(
        format=NAME,
        path=main,
        files=(main, *(main.parent / one for one in files.values())),
        found=(f"{len(files)} files", f"{len(tests)} tests", f"{len(benchmarks)} benchmarks"),
        missing=tuple(missing),
        name=_name(main),
        options={"files": files, "tests": tests, "benchmarks": benchmarks},
        kernel=next((p for p in (main.parent / "submission.py",) if p.is_file()), None),
    )


def _checked(read: Any, otherwise: Any, missing: list[str]) -> Any:
    try:
        return read()
    except ProblemError as error:
        missing.append(str(error).rstrip("."))
        return otherwise


def _name(main: Path) -> str:
    return re.sub(r"[^a-z0-9]+", "-", main.resolve().parent.name.lower()).strip("-") or NAME


def _yaml(path: Path) -> Any:
    """A YAML file's value, without aliases: a few of them can stand for more than a machine holds."""
    import yaml  # late: the harness has none

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it holds an alias; write the value out")
            return super().compose_node(parent, index)

    try:
        return yaml.load(text_of(path), Plain)
    except yaml.YAMLError as error:
        raise ProblemError(f"{path.name} is not YAML: {' '.join(str(error).split())[:200]}.") from error
    except RecursionError as error:
        raise ProblemError(f"{path.name} is nested too deeply to be read.") from error
    except ValueError as error:  # a date that is none, and the like
        raise ProblemError(f"{path.name} holds a value that cannot be read: {str(error)[:200]}.") from error


def _files(main: Path, task: Mapping[str, Any]) -> dict[str, str]:
    """What each file of the task is called where it runs, and where it lies; the submission and the runner left out.

    Raises:
        ProblemError: the field is not what it must be, or a file may not be read.
    """
    if isinstance(given := task.get("files"), dict):
        listed: list[Any] = [{"name": name, "source": source} for name, source in given.items()]
    else:
        listed = field(task, "files", list, main.name)
    config = task.get("config")
    runner = config.get("main") if isinstance(config, dict) else None
    files: dict[str, str] = {}
    for number, one in enumerate(listed):
        where = f"{main.name}: files[{number}]"
        if not isinstance(one, dict):
            raise ProblemError(f"{where} is {str(one)[:60]!r}; expected an object with name and source.")
        name, source = field(one, "name", str, where), field(one, "source", str, where)
        if source == SUBMISSION or name == runner:
            continue
        if not _PLAIN.fullmatch(name) or len(name) > 200:
            raise ProblemError(f"{where}: field 'name' is {name[:60]!r}; expected a plain file name.")
        _inside(main, source, where)
        files[name] = source
    return files


def _inside(main: Path, source: str, where: str) -> None:
    """Refuse a file that is not there, is no Python file, or lies far away from the task."""
    path = (main.parent / source) if "\0" not in source else main
    root = main.resolve().parent
    for _ in range(_UP):
        root = root.parent
    if source.startswith("/") or path.suffix != ".py" or not path.resolve().is_relative_to(root):
        raise ProblemError(
            f"{where}: field 'source' is {source[:80]!r}; expected a Python file, at most {_UP} folders above the task."
        )
    if not path.is_file():
        raise ProblemError(f"{where}: field 'source' is {source[:80]!r}, which is not there; expected a file.")


def _tests(main: Path, task: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The arguments of each test, for `generate_input`.

    Raises:
        ProblemError: one is no object of numbers and texts.
    """
    tests: list[dict[str, Any]] = field(task, name, list, main.name)
    if len(tests) > MOST or (not tests and name == "tests"):
        raise ProblemError(f"{main.name}: field {name!r} has {len(tests)} entries; expected 1 to {MOST}.")
    for number, test in enumerate(tests):
        if not isinstance(test, dict) or not all(isinstance(k, str) and k.isidentifier() for k in test):
            raise ProblemError(f"{main.name}: {name}[{number}] is no object of arguments by name.")
        for key, value in test.items():
            if not _is_argument(value):
                raise ProblemError(
                    f"{main.name}: {name}[{number}]: field {key!r} is {str(value)[:60]!r}; expected a number, a text, "
                    "or a list of them."
                )
    return tests


def _is_argument(value: Any) -> bool:
    """Whether it survives as JSON: YAML has dates, sets and infinities too."""
    if isinstance(value, list):
        return all(map(_is_argument, value))
    return value is None or type(value) in (int, str, bool) or (type(value) is float and math.isfinite(value))


def _lacking(main: Path, files: Mapping[str, str]) -> list[str]:
    """What the reference does not define."""
    if "reference.py" not in files:
        return [f"{main.name}: field 'files' names no reference.py; expected one"] if files else []
    path = main.parent / files["reference.py"]
    try:
        there = defined(tree_of(path))
    except ProblemError as error:
        return [str(error).rstrip(".")]
    return [f"{path.name} defines no {name}; expected it at the file's top" for name in FUNCTIONS if name not in there]


def load(
    path: Path,
    *,
    kernel: Path | None = None,
    files: Mapping[str, str],
    tests: Sequence[Mapping[str, Any]],
    benchmarks: Sequence[Mapping[str, Any]] = (),
    precision: Literal["ieee", "tf32"] = "ieee",
) -> Problem:
    """Execute the task's reference and express it as a `Problem`.

    Args:
        files, tests, benchmarks: as `recognise` read them.
        precision: `tf32` lets float32 products be rounded to 10 bits.

    Raises:
        ProblemError: it does not load, or cannot be a problem; the text names file, field and reason.
    """
    from kopt_mcp.problems.nested import problem_of

    del kernel
    if precision not in ("ieee", "tf32"):
        raise ProblemError(f"{path.name}: option precision is {precision!r}; expected 'ieee' or 'tf32'.")
    texts = {name: text_of(path.parent / source) for name, source in files.items()}
    return problem_of(_name(path), texts, list(tests), list(benchmarks), precision)
