"""The largest value of each row, and where it is: two outputs, of a floating type and of integers."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amax(dim=-1), x.argmax(dim=-1)


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="row_max",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 64, "cols": 1000}), Workload({"rows": 5, "cols": 129}, timed=False)],
    bytes="(rows * cols + 3 * rows) * itemsize",
    flops="rows * cols",
    bound="memory",
    distributions=("normal", "mixed", "large"),
    vary={"rows": (1, 40), "cols": (1, 600)},
)
