"""A transposed copy. Of one row it is the same bytes, and torch hands back a view of its input."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous()


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="transpose",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": rows, "cols": 37}) for rows in (1, 12)],
    bytes="2 * rows * cols * itemsize",
    flops="0",
    bound="memory",
    vary={"rows": (1, 90), "cols": (1, 90)},
)
