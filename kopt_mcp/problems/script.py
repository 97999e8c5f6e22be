"""Test scripts that check and time a kernel themselves and print JSON: run as they are, their figures as reported."""

from __future__ import annotations

import ast
from pathlib import Path

from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import Unlike, tree_of

EXPECTED = "a Python program that takes --json and prints an object with correctness or status"
VERDICTS = ("correctness", "status")
HOW_TO_MEASURE = (
    "Its figures are taken as reported, and certify nothing; to have the kernel checked and timed, write a Problem "
    "(kopt-mcp import, or reference and shapes in baseline's arguments)."
)


def recognise(path: Path) -> Recognition:
    """Whether a file is a program that takes `--json` and names what a report holds."""
    texts = _texts(tree_of(path))
    if "--json" not in texts:
        raise Unlike(f"{path.name} does not take '--json'")
    words = [word for word in VERDICTS if word in texts]
    found = tuple(f"{word!r}, line {texts[word]}" for word in ["--json", *words])
    missing = () if words else (f"{path.name} prints neither 'correctness' nor 'status'; expected one of them.",)
    return Recognition("script", path, (path,), found, missing, name=path.stem.removeprefix("test_"), trust="reported")


def _texts(tree: ast.Module) -> dict[str, int]:
    """Every string of a program and the first line it stands on; the names of keyword arguments count too."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.setdefault(node.value, node.lineno)
        elif isinstance(node, ast.keyword) and node.arg:
            found.setdefault(node.arg, node.value.lineno)
    return found
