"""KernelBench: a file with a module `Model`, `get_inputs()` and `get_init_inputs()`; a candidate defines `ModelNew`.

What a problem file leaves open is settled here. Inputs: what `get_inputs` draws with `torch.rand`, `randn` or `randint`
becomes a recipe of ours, so that shapes and ranges are the problem's and seeds and values are not; whatever else it
returns is drawn by itself under our seeds. Weights: `Model` is built under a secret seed, what is constant in its state
(a norm's ones, a bias of zeros) is drawn anew, since a kernel that leaves it out must not be right, and the candidate
is given the same state; several such sets are tried. Reference: the module in float64. Float32 means float32 unless the
options allow TF32.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kopt_mcp.problem import Problem, ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import defined, text_of, tree_of

if TYPE_CHECKING:
    from kopt_mcp.problems.modules import Options

NAME = "kernelbench"
EXPECTED = "a Python file with a class Model, get_inputs() and get_init_inputs()"
FUNCTIONS = ("get_inputs", "get_init_inputs")


def recognise(path: Path) -> Recognition | str:
    """Whether a file defines `Model` and at least one of the two functions."""
    if path.suffix != ".py":
        return f"{path.name} does not end in .py; expected {EXPECTED}."
    there = defined(tree_of(path))
    if "Model" not in there and "ModelNew" in there and "get_inputs" not in there:
        return f"{path.name} defines ModelNew, a candidate; name the problem's file, which defines Model, as the task."
    functions = [name for name in FUNCTIONS if name in there]
    if "Model" not in there or not functions:
        lacks = [name for name in ("Model", *FUNCTIONS) if name not in there]
        return f"{path.name} defines no {' and no '.join(lacks)}; expected {EXPECTED}."
    found = tuple(f"{name}, line {there[name].lineno}" for name in ("Model", *functions))
    return Recognition(NAME, path, (path,), found, tuple(_missing(path, there)), _name(path))


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
        if isinstance(node, ast.FunctionDef) and _required(node):
            lacks.append(f"{path.name} line {node.lineno}: {name}() takes {_required(node)}; expected no arguments")
    return lacks


def _required(node: ast.FunctionDef) -> list[str]:
    positional = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return positional[: len(positional) - len(node.args.defaults)]


def _name(path: Path) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or "kernelbench"


def load(
    path: Path,
    *,
    kernel: Path | None = None,
    sizes: Sequence[Mapping[str, Any]] = (),
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    precision: Literal["ieee", "tf32"] = "ieee",
    mode: Literal["train", "eval"] = "train",
    weights: Literal["drawn", "given"] = "drawn",
    values: Literal["given", "normal"] = "given",
) -> Problem:
    """Execute a problem file and express it as a `Problem`.

    Args:
        sizes: further workloads, each the problem with some of its constants replaced: `[{"batch_size": 16}]`.
        dtype: of inputs and weights.
        precision: `tf32` lets float32 products be rounded to 10 bits.
        mode: what `Model` is in when it is called; KernelBench leaves it in training mode.
        weights: `given` leaves constants in the state as `Model` makes them.
        values: `normal` draws what `torch.rand` draws from normal and from awkward distributions instead.

    Raises:
        ProblemError: it does not load, or cannot be a problem; the text names file, field and reason.
    """
    from kopt_mcp.problems.modules import Options, problem_of

    del kernel
    source = text_of(path)
    options = Options(tuple(dict(one) for one in sizes), dtype, precision, mode, weights, values)
    _check(path, source, options)
    return problem_of(path.name, _name(path), source, options)


def _check(path: Path, source: str, options: Options) -> None:
    allowed = {
        "dtype": ("float32", "float16", "bfloat16"),
        "precision": ("ieee", "tf32"),
        "mode": ("train", "eval"),
        "weights": ("drawn", "given"),
        "values": ("given", "normal"),
    }
    for name, choices in allowed.items():
        if getattr(options, name) not in choices:
            raise ProblemError(f"{path.name}: option {name} is {getattr(options, name)!r}; expected one of {choices}.")
    constants = {n for n, node in defined(ast.parse(source)).items() if isinstance(node, ast.Assign)}
    for size in options.sizes:
        if unknown := [name for name in size if name not in constants]:
            raise ProblemError(
                f"{path.name}: option sizes names {unknown[0]!r}, which the file does not assign at its top; "
                f"it assigns {sorted(constants)[:20]}."
            )
