"""The mean of each row, written to every element of it."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.mean(dim=-1, keepdim=True) + torch.zeros_like(x)


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="row-mean",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 64, "cols": 1000}), Workload({"rows": 5, "cols": 129}, timed=False)],
    bytes="2 * rows * cols * itemsize",
    flops="rows * cols",
    bound="memory",
    reduction="cols",
    scale=lambda x: x.square().sum(dim=-1, keepdim=True).sqrt().expand_as(x) / x.shape[-1],
    vary={"rows": (1, 40), "cols": (2, 600)},
)
