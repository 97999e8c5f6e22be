"""Rows of mean zero and variance one; what a row of one value becomes is not defined."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / centred.square().mean(dim=-1, keepdim=True).sqrt()


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="standard_score",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 96, "cols": 512}), Workload({"rows": 16, "cols": 300}, timed=False)],
    bytes="2 * rows * cols * itemsize",
    flops="6 * rows * cols",
    bound="memory",
)
