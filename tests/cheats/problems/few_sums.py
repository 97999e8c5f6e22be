"""Sums of a few long rows: much to do for an output of eight numbers."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=-1)


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="few_sums",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 8, "cols": 200_000}), Workload({"rows": 5, "cols": 129}, timed=False)],
    bytes="rows * (cols + 1) * itemsize",
    flops="rows * cols",
    bound="memory",
    reduction="cols",
    scale=lambda x: x.square().sum(dim=-1).sqrt(),
    vary={"rows": (1, 8), "cols": (1, 600)},
)
