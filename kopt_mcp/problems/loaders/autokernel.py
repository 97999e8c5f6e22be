"""The problems that ship with the package, for kernels of AutoKernel's types."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kopt_mcp.problem import Problem, ProblemError, Workload
from kopt_mcp.problems.adapters import autokernel as adapter
from kopt_mcp.problems.autokernel import HELPER, TYPES, helper_of
from kopt_mcp.problems.loaders import executed, one_of
from kopt_mcp.problems.reading import text_of

_PACKAGE = Path(__file__).resolve().parents[2]
_DTYPE = "float16"
"""What AutoKernel extracts shapes for, first of all."""


def load(path: Path, *, kernel_type: str, shapes: Sequence[Mapping[str, int]] = (), helper: bool = False) -> Problem:
    """Our problem of a type, called as AutoKernel calls it: plain layouts, its shapes, its meaning where it differs.

    Nothing of the kernel is executed.

    Args:
        kernel_type, shapes, helper: as `recognise` read them.
    """
    one_of("kernel_type", kernel_type, tuple(TYPES))
    found = helper_of(path) if helper else None
    problem = _shipped(TYPES[kernel_type][0])
    fitted = _FITTED[kernel_type](problem) if kernel_type in _FITTED else problem
    own = [_workload(kernel_type, shape) for shape in shapes]
    known = {w.name for w in own}
    return replace(
        fitted,
        name=f"autokernel-{kernel_type.replace('_', '-')}",
        entry=adapter.CANDIDATE,
        workloads=[*own, *(w for w in fitted.workloads if w.name not in known)],
        layouts=("contiguous",),
        adapter="autokernel",
        adapter_spec={"type": kernel_type, "files": {HELPER: text_of(found)} if found else {}},
    )


def _shipped(name: str) -> Problem:
    file = f"kernels/{name}/test_{name.replace('-', '_')}.py"
    for root in (_PACKAGE / "_skills", _PACKAGE.parent / "skills"):
        if (root / file).is_file():
            problem: Problem = executed(root / file, "kopt_problem").PROBLEM
            return problem
    raise ProblemError(f"the package's own problem {file} is not there; install the package again.")


def _workload(kernel_type: str, shape: Mapping[str, int]) -> Workload:
    params = dict(shape)
    if kernel_type == "flash_attention":
        params = {k: params[k] for k in ("batch", "heads")} | {"kv_heads": params["heads"]} | params
    small = math.prod(params.values()) <= 1 << 20
    return Workload(params, _DTYPE, ("cpu", "cuda") if small else ("cuda",))


def _attention(problem: Problem) -> Problem:
    """As many key heads as query heads, and head sizes that are powers of two: it is called with no others."""
    fitting = [
        w
        for w in problem.workloads
        if w.params["heads"] == w.params["kv_heads"] and w.params["dim"] in (16, 32, 64, 128)
    ]
    own = Workload({"batch": 1, "heads": 2, "kv_heads": 2, "seq": 96, "dim": 32}, "float32", devices=("cpu",))
    return replace(problem, workloads=[own, *fitting])


def _interleaved(problem: Problem) -> Problem:
    """Neighbours are turned together, where our kernel turns the two halves."""

    def woven(function: Any) -> Callable[..., torch.Tensor]:
        def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            halves = function(torch.cat([x[..., ::2], x[..., 1::2]], dim=-1), cos, sin)
            return torch.stack(halves.chunk(2, dim=-1), dim=-1).flatten(-2)

        return turned

    return replace(problem, reference=woven(problem.reference), scale=woven(problem.scale), comparisons={})


def _mean(problem: Problem) -> Problem:
    """One number, the mean of the rows' losses, in float32."""

    def mean(function: Any) -> Callable[..., Any]:
        return lambda logits, labels: function(logits, labels).mean()

    return replace(
        problem,
        reference=mean(problem.reference),
        scale=mean(problem.scale),
        bytes="rows * vocab * itemsize + rows * 8 + 4",
        comparisons={},
    )


_FITTED = {"flash_attention": _attention, "rotary_embedding": _interleaved, "cross_entropy": _mean}
"""Where their contract is not ours."""
