"""The positive and the negative part of a matrix: two outputs."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.clamp(min=0), x.clamp(max=0)


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="two-sides",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 400, "cols": 1000}), Workload({"rows": 5, "cols": 129}, timed=False)],
    bytes="3 * rows * cols * itemsize",
    flops="2 * rows * cols",
    bound="memory",
    vary={"rows": (1, 40), "cols": (1, 600)},
)
