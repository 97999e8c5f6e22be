"""Test scripts that check and time a kernel themselves and print JSON: run as they are, their figures taken as reported.

The contract: `python test_x.py --json` prints lines for people and one JSON object, on one line or indented, and exits
with 0 only if everything is right.
"""

from __future__ import annotations

import ast
from pathlib import Path

from kopt_mcp.problem import Problem, ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import tree_of

NAME = "script"
EXPECTED = "a Python program that takes --json and prints an object with correctness or status"
VERDICTS = ("correctness", "status")


def recognise(path: Path) -> Recognition | str:
    """Whether a file is a program that takes `--json` and names what the contract's object holds."""
    if path.suffix != ".py":
        return f"{path.name} does not end in .py; expected {EXPECTED}."
    texts = _texts(tree_of(path))
    if "--json" not in texts:
        return f"{path.name} does not take '--json'; expected {EXPECTED}."
    found = [f"'--json', line {texts['--json']}"]
    found += [f"{word!r}, line {texts[word]}" for word in VERDICTS if word in texts]
    missing = (
        () if len(found) > 1 else (f"{path.name} prints neither 'correctness' nor 'status'; expected one of them.",)
    )
    name = path.stem.removeprefix("test_")
    return Recognition(NAME, path, (path,), tuple(found), missing, name=name, trust="reported")


def load(path: Path, *, kernel: Path | None = None) -> Problem:
    """Never possible: a script keeps its reference and its inputs to itself."""
    del kernel
    raise ProblemError(
        f"{path.name} is a script that judges itself; there is no reference and there are no inputs to measure with; "
        "its figures can only be taken as reported; write a Problem to have them measured."
    )


def _texts(tree: ast.Module) -> dict[str, int]:
    """Every string of a program and the first line it stands on; words inside dict() calls count too."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.setdefault(node.value, node.lineno)
        elif isinstance(node, ast.keyword) and node.arg:
            found.setdefault(node.arg, node.value.lineno)
    return found
