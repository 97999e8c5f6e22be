"""Softmax of the sum of two small matrices."""

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x + y
    exp = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exp / exp.sum(dim=-1, keepdim=True)


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols), make.normal(rows, cols)]


PROBLEM = Problem(
    name="softmax",
    reference=reference,
    inputs=inputs,
    workloads=[
        Workload({"rows": 96, "cols": 512}),
        Workload({"rows": 3, "cols": 257}, timed=False),
        Workload({"rows": 16, "cols": 300}, timed=False),
        Workload({"rows": 40, "cols": 64}, timed=False),
    ],
    bytes="3 * rows * cols * itemsize",
    flops="6 * rows * cols",
    bound="memory",
    reduction="cols",
    scale=reference,
    vary={"rows": (1, 16), "cols": (1, 600)},
    layouts=LAYOUTS,
)
