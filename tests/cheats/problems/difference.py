"""The difference of two matrices, whose rows may lie apart: in both of them, or in one only."""

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a - b


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols), make.normal(rows, cols)]


PROBLEM = Problem(
    name="difference",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 100, "cols": 300}), Workload({"rows": 7, "cols": 257}, timed=False)],
    bytes="3 * rows * cols * itemsize",
    flops="rows * cols",
    bound="memory",
    scale=lambda a, b: (a.square() + b.square()).sqrt(),
    reduction="2",
    vary={"rows": (2, 40), "cols": (1, 600)},
    layouts=LAYOUTS,
)
