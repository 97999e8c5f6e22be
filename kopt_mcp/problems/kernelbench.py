"""KernelBench: a file with a module `Model`, `get_inputs()` and `get_init_inputs()`; a candidate defines `ModelNew`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import Unlike, defined, slug, tree_of

EXPECTED = "a Python file with a class Model, get_inputs() and get_init_inputs()"
FUNCTIONS = ("get_inputs", "get_init_inputs")


def recognise(path: Path) -> Recognition:
    """Whether a file defines `Model` and at least one of the two functions."""
    there = defined(tree_of(path))
    if "Model" not in there and "ModelNew" in there and "get_inputs" not in there:
        raise ProblemError(
            f"{path.name} defines ModelNew, a candidate; name the problem's file, which defines Model, as the task."
        )
    functions = [name for name in FUNCTIONS if name in there]
    if "Model" not in there or not functions:
        raise Unlike(f"{path.name} defines no {' and no '.join(n for n in ('Model', *FUNCTIONS) if n not in there)}")
    found = tuple(f"{name}, line {there[name].lineno}" for name in ("Model", *functions))
    return Recognition("kernelbench", path, (path,), found, tuple(_missing(path, there)), slug(path.stem))


def _missing(path: Path, there: Mapping[str, ast.stmt]) -> list[str]:
    model = there["Model"]
    lacks = [
        f"{path.name} has no {name}(); expected a list of arguments from it" for name in FUNCTIONS if name not in there
    ]
    if not isinstance(model, ast.ClassDef):
        lacks.append(f"{path.name} line {model.lineno}: Model is not a class; expected a torch.nn.Module")
    elif not any(isinstance(node, ast.FunctionDef) and node.name == "forward" for node in model.body):
        lacks.append(f"{path.name} line {model.lineno}: class Model has no forward(); expected what is to be computed")
    for name in FUNCTIONS:
        node = there.get(name)
        if isinstance(node, ast.FunctionDef) and (needed := _required(node)):
            lacks.append(f"{path.name} line {node.lineno}: {name}() takes {needed}; expected no arguments")
    return lacks


def _required(node: ast.FunctionDef) -> list[str]:
    positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return positional[: len(positional) - len(node.args.defaults)]
