"""Sums of rows, where terms cancel: the result says nothing about how large the terms were."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=-1)


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="row-sum",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 64, "cols": 1000}), Workload({"rows": 5, "cols": 129}, timed=False)],
    bytes="rows * (cols + 1) * itemsize",
    flops="rows * cols",
    bound="memory",
    reduction="cols",
    scale=lambda x: x.square().sum(dim=-1).sqrt(),
    vary={"rows": (1, 40), "cols": (1, 600)},
)
