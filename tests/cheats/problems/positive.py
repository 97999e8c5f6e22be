"""Where a matrix is positive: floats in, truth values out."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    return x > 0


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="positive",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 64, "cols": 1000}), Workload({"rows": 5, "cols": 129}, timed=False)],
    bytes="rows * cols * (itemsize + 1)",
    flops="rows * cols",
    bound="memory",
    vary={"rows": (1, 40), "cols": (1, 600)},
)
