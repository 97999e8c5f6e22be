"""GPU MODE: a folder with `task.yml`, and the files that it names; a candidate defines `custom_kernel(data)`.

`reference.py` has `generate_input(**test)`, `ref_kernel(data)` and `check_implementation(data, output)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import Unlike, defined, field, noted, slug, text_of, tree_of

EXPECTED = "a folder with a task.yml that lists files, tests and benchmarks"
FILE = "task.yml"
SUBMISSION = "@SUBMISSION@"
FUNCTIONS = ("generate_input", "ref_kernel", "check_implementation")
MOST = 200
"""Tests and benchmarks of one task; the largest public ones have forty."""
_UP = 2
"""Folders above the task's own in which its files may lie."""
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


def recognise(path: Path) -> Recognition:
    """Whether a folder, or a file of that name, is a `task.yml` that lists files and tests."""
    main = path / FILE if path.is_dir() else path
    if main.suffix not in (".yml", ".yaml"):
        raise Unlike(f"{path.name} is neither a folder nor a {FILE}")
    if not main.exists():
        raise Unlike(f"{path.name} holds no {FILE}")
    task = _yaml(main)
    if not isinstance(task, dict) or not {"files", "tests"} & set(task):
        raise Unlike(f"{main.name} has neither 'files' nor 'tests'")
    missing: list[str] = []
    files: dict[str, str] = {}
    tests: dict[str, list[dict[str, Any]]] = {"tests": [], "benchmarks": []}
    with noted(missing):
        files = _files(main, task)
    for name in tests:
        with noted(missing):
            tests[name] = _tests(main, task, name)
    if not missing and task.get("lang", "py") != "py":
        missing.append(f"{main.name}: field 'lang' is {str(task['lang'])[:40]!r}; expected 'py': a kernel in Python")
    with noted(missing):
        missing += _lacking(main, files)
    submission = main.parent / "submission.py"
    return Recognition(
        format="gpumode",
        path=main,
        files=(main, *(main.parent / one for one in files.values())),
        found=(f"{len(files)} files", *(f"{len(listed)} {name}" for name, listed in tests.items())),
        missing=tuple(missing),
        name=slug(main.resolve().parent.name),
        options={"files": files, **tests},
        kernel=submission if submission.is_file() else None,
    )


def _yaml(path: Path) -> Any:
    """A YAML file's value, without aliases: a few of them can stand for more than a machine holds."""
    import yaml  # late: the harness has none

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it holds an alias; write the value out")
            return super().compose_node(parent, index)

    text = text_of(path)
    try:
        return yaml.load(text, Plain)
    except yaml.YAMLError as error:
        raise ProblemError(f"{path.name} is not YAML: {' '.join(str(error).split())[:200]}.") from error
    except ValueError as error:  # a date that is none, and the like
        raise ProblemError(f"{path.name} holds a value that cannot be read: {str(error)[:200]}.") from error


def _files(main: Path, task: Mapping[str, Any]) -> dict[str, str]:
    """What each file of the task is called where it runs, and where it lies; the submission and the runner left out."""
    listed: list[Any] = []
    if isinstance(given := task.get("files"), dict):
        listed = [{"name": name, "source": source} for name, source in given.items()]
    else:
        listed = field(task, "files", list, main.name)
    config = task.get("config")
    runner = config.get("main") if isinstance(config, dict) else None
    files: dict[str, str] = {}
    for number, one in enumerate(listed):
        where = f"{main.name}: files[{number}]"
        name, source = field(one, "name", str, where), field(one, "source", str, where)
        if source == SUBMISSION or name == runner:
            continue
        if not _PLAIN.fullmatch(name) or len(name) > 200:
            raise ProblemError(f"{where}: field 'name' is {name[:60]!r}; expected a plain file name.")
        _require_near(main, source, where)
        files[name] = source
    return files


def _require_near(main: Path, source: str, where: str) -> None:
    """Refuse a file that is not there, is no Python file, or lies far away from the task."""
    said = f"{where}: field 'source' is {source[:80]!r}"
    path = (main.parent / source) if "\0" not in source else main
    root = main.resolve().parents[: _UP + 1][-1]
    if source.startswith("/") or path.suffix != ".py" or not path.resolve().is_relative_to(root):
        raise ProblemError(f"{said}; expected a Python file, at most {_UP} folders above the task.")
    if not path.is_file():
        raise ProblemError(f"{said}, which is not there; expected a file.")


def _tests(main: Path, task: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The arguments of each test, for `generate_input`."""
    if name == "benchmarks" and name not in task:
        return []
    tests: list[dict[str, Any]] = field(task, name, list, main.name)
    if len(tests) > MOST or (not tests and name == "tests"):
        raise ProblemError(f"{main.name}: field {name!r} has {len(tests)} entries; expected 1 to {MOST}.")
    for number, test in enumerate(tests):
        if not isinstance(test, dict) or not all(isinstance(k, str) and k.isidentifier() for k in test):
            raise ProblemError(f"{main.name}: {name}[{number}] is no object of arguments by name.")
        if wrong := [key for key, value in test.items() if not _is_argument(value)]:
            raise ProblemError(
                f"{main.name}: {name}[{number}]: field {wrong[0]!r} is {str(test[wrong[0]])[:60]!r}; expected a "
                "number, a text, or a list of them."
            )
    return tests


def _is_argument(value: Any) -> bool:
    """Whether it survives as JSON: YAML has dates, sets and infinities too."""
    if isinstance(value, list):
        return all(map(_is_argument, value))
    return value is None or type(value) in (int, str, bool) or (type(value) is float and math.isfinite(value))


def _lacking(main: Path, files: Mapping[str, str]) -> list[str]:
    """What the reference does not define."""
    if not files:
        return []
    if "reference.py" not in files:
        return [f"{main.name}: field 'files' names no reference.py; expected one"]
    path = main.parent / files["reference.py"]
    there = defined(tree_of(path))
    return [f"{path.name} defines no {name}; expected it at the file's top" for name in FUNCTIONS if name not in there]
