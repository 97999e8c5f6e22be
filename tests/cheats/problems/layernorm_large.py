"""Normalised rows of two matrices, one so large that it is checked less often."""

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="layernorm",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 7, "cols": 257}), Workload({"rows": 2304, "cols": 1024}, timed=False)],
    bytes="2 * rows * cols * itemsize",
    flops="7 * rows * cols",
    bound="memory",
    reduction="cols",
    scale=lambda x: (x.square().mean(dim=-1, keepdim=True) / (x.var(dim=-1, keepdim=True) + 1e-5)).sqrt().expand_as(x),
    vary={"rows": (4, 40), "cols": (2, 600)},
    layouts=LAYOUTS,
)
