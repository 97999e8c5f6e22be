"""Sums of a few very long rows."""

import torch

from kopt_mcp.problem import Problem, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=-1)


def terms(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum(dim=-1).sqrt()


PROBLEM = Problem(
    name="row_sum",
    reference=reference,
    inputs=lambda make, rows, cols: [make.normal(rows, cols)],
    workloads=[Workload({"rows": 16, "cols": 2097152}, "float32")],
    bytes="rows * cols * itemsize + rows * itemsize",
    flops="rows * cols",
    bound="memory",
    reduction="cols",
    scale=terms,
)
