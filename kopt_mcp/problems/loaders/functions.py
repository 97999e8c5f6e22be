"""Plain functions as a problem.

The bytes are those of the inputs and of what the reference returns. How many operations a function needs cannot be read
off it: rates in operations are not known, and `gbps` or `latency_us` are the metrics to use.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.overrides

from kopt_mcp.problem import Input, Problem, ProblemError, Spec, Workload
from kopt_mcp.problems.functions import inputs_of, place
from kopt_mcp.problems.loaders import executed, size_of, words

_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def load(path: Path, *, reference: str, shapes: Sequence[str], dtypes: Sequence[str], entry: str) -> Problem:
    """The problem that these arguments describe; `path` is the reference's file, or the folder that modules lie in."""
    function = _function(reference, path)
    read = [(shape, *inputs_of(shape, dtype)) for shape in shapes for dtype in (dtypes or (None,))]
    workloads = []
    for number, (shape, dtype, inputs) in enumerate(read):
        params = {"case": number, "moved": size_of([*inputs, *_outputs(function, inputs, shape)])}
        workloads.append(Workload(params, dtype, name=f"{shape.replace(',', '_')}-{_SHORT.get(dtype, dtype)}"))
    return Problem(
        name=entry.replace("_", "-"),
        entry=entry,
        reference=function,
        inputs=lambda make, case, moved: read[case][2],
        workloads=workloads,
        bytes="moved",
        flops="0",
        bound="memory",
    )


def _function(reference: str, path: Path) -> Callable[..., Any]:
    """The reference itself, its literal arguments added."""
    where = place(reference)
    holder = executed(path, "reference") if where.is_file else _module(where.where, path)
    function = getattr(holder, where.name, None)
    if not callable(function):
        raise ProblemError(f"reference {reference!r}: {where.where} has no function {where.name!r}.")
    if where.where.partition(".")[0] == "torch" and where.where != "torch.nn.functional" and not _operates(function):
        raise ProblemError(
            f"reference {reference!r} is none of torch's operations on tensors; expected one, such as "
            "torch:softmax(dim=-1)."
        )
    return partial(function, **where.arguments)


def _operates(function: Callable[..., Any]) -> bool:
    """Whether torch lets tensors of other kinds take part in it, as in all of its operations and in nothing else."""
    known = torch.overrides.get_overridable_functions().values()
    return any(function is one for functions in known for one in functions)


def _module(name: str, folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ProblemError(f"reference: the module {name!r} does not load: {words(error)}.") from error
    finally:
        sys.path.remove(str(folder))


def _outputs(function: Callable[..., Any], inputs: Sequence[Input], shape: str) -> list[torch.Tensor]:
    """What the reference returns: on shapes alone where it can be done, else on zeros."""
    try:
        outputs = _called(function, inputs, "meta")
    except Exception:  # not every function works on tensors without values
        try:
            outputs = _called(function, inputs, "cpu")
        except Exception as error:
            raise ProblemError(
                f"the reference does not take the inputs {shape!r}: {words(error)}; correct the shapes, or give it "
                "arguments, as in torch:softmax(dim=-1)."
            ) from error
    if not all(isinstance(t, torch.Tensor) for t in outputs):
        raise ProblemError(
            f"the reference returns {', '.join(type(t).__name__ for t in outputs)} for the inputs {shape!r}; expected "
            "tensors; a function that works in place needs a problem file that says which inputs it mutates."
        )
    return outputs


def _called(function: Callable[..., Any], inputs: Sequence[Input], device: str) -> list[Any]:
    returned = function(
        *(
            torch.zeros(one.shape, dtype=getattr(torch, one.dtype), device=device) if isinstance(one, Spec) else one
            for one in inputs
        )
    )
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]
