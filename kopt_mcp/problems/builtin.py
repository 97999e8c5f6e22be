"""The problems that ship with the package, for kernels of AutoKernel's types. Harness only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kopt_mcp.problem import Problem, ProblemError, Workload
from kopt_mcp.problems import executed

_PACKAGE = Path(__file__).resolve().parent.parent
_DTYPE = "float16"
"""What AutoKernel extracts shapes for, first of all."""


def problem_of(kernel_type: str, name: str, shapes: Sequence[Mapping[str, int]], files: Mapping[str, str]) -> Problem:
    """Our problem `name`, called as AutoKernel calls it: plain layouts, its shapes, and where it differs its meaning.

    Raises:
        ProblemError: the package's problems are not there.
    """
    problem = _FITTED.get(kernel_type, _same)(_shipped(name))
    own = [_workload(kernel_type, shape) for shape in shapes]
    known = {w.name for w in own}
    return replace(
        problem,
        name=f"autokernel-{kernel_type.replace('_', '-')}",
        entry="kernel_fn",
        workloads=[*own, *(w for w in problem.workloads if w.name not in known)],
        layouts=("contiguous",),
        adapter="autokernel",
        adapter_spec={"type": kernel_type, "files": dict(files)},
    )


def _shipped(name: str) -> Problem:
    file = f"kernels/{name}/test_{name.replace('-', '_')}.py"
    for root in (_PACKAGE / "_skills", _PACKAGE.parent / "skills"):
        if (root / file).is_file():
            problem = executed(root / file, "kopt_problem").PROBLEM
            assert isinstance(problem, Problem)
            return problem
    raise ProblemError(f"the package's own problem {file} is not there; install the package again.")


def _workload(kernel_type: str, shape: Mapping[str, int]) -> Workload:
    params = dict(shape)
    if kernel_type == "flash_attention":
        params = {k: params[k] for k in ("batch", "heads")} | {"kv_heads": params["heads"]} | params
    small = math.prod(params.values()) <= 1 << 20
    return Workload(params, _DTYPE, ("cpu", "cuda") if small else ("cuda",))


def _same(problem: Problem) -> Problem:
    return problem


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

    def reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return _woven(problem.reference(_halves(x), cos, sin))

    def scale(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        assert problem.scale is not None
        return _woven(problem.scale(_halves(x), cos, sin))

    return replace(problem, reference=reference, scale=scale, comparisons={})


def _halves(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[..., ::2], x[..., 1::2]], dim=-1)


def _woven(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)


def _mean(problem: Problem) -> Problem:
    """One number, the mean of the rows' losses, in float32."""

    def reference(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = problem.reference(logits, labels).mean()
        return loss

    def scale(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        assert problem.scale is not None
        terms: torch.Tensor = problem.scale(logits, labels).mean()
        return terms

    return replace(
        problem,
        reference=reference,
        scale=scale,
        bytes="rows * vocab * itemsize + rows * 8 + 4",
        comparisons={},
    )


_FITTED: dict[str, Callable[[Problem], Problem]] = {
    "flash_attention": _attention,
    "rotary_embedding": _interleaved,
    "cross_entropy": _mean,
}
"""Where their contract is not ours."""
