"""Rows of length one; a row of zeros stays as it is."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    return x / x.square().sum(dim=-1, keepdim=True).sqrt().clamp_min(1e-12)


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="unit_rows",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 96, "cols": 512}), Workload({"rows": 16, "cols": 300}, timed=False)],
    bytes="2 * rows * cols * itemsize",
    flops="4 * rows * cols",
    bound="memory",
    reduction="cols",
    scale=reference,
    vary={"rows": (1, 16), "cols": (1, 600)},
)
