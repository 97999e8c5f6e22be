"""Our own format: a Python file that assigns a `kopt_mcp.problem.Problem` to `PROBLEM`."""

from __future__ import annotations

import ast
from pathlib import Path

from kopt_mcp.problem import Problem, ProblemError
from kopt_mcp.problems import Recognition, executed
from kopt_mcp.problems.reading import defined, tree_of

NAME = "problem"
EXPECTED = "a Python file that assigns a kopt_mcp.problem.Problem to PROBLEM"


def recognise(path: Path) -> Recognition | str:
    """Whether a file assigns `PROBLEM` and imports what it is made of."""
    if path.suffix != ".py":
        return f"{path.name} does not end in .py; expected {EXPECTED}."
    tree = tree_of(path)
    assigned = defined(tree).get("PROBLEM") or _imported(tree)
    if assigned is None:
        return f"{path.name} assigns nothing to PROBLEM; expected {EXPECTED}."
    found = (f"PROBLEM, line {assigned.lineno}",)
    return Recognition(NAME, path, (path,), found, name=path.stem.removeprefix("test_"))


def load(path: Path, *, kernel: Path | None = None) -> Problem:
    """Execute the file and take its `PROBLEM`."""
    del kernel  # found beside the file, as when it is run by itself
    problem = getattr(executed(path, "kopt_problem"), "PROBLEM", None)
    if not isinstance(problem, Problem):
        raise ProblemError(f"{path.name} assigns {type(problem).__name__} to PROBLEM; expected {EXPECTED}.")
    return problem


def _imported(tree: ast.Module) -> ast.stmt | None:
    """`from shared import PROBLEM` declares one too."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == "PROBLEM" for a in node.names):
            return node
    return None
