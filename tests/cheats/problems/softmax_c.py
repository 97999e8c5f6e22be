"""Softmax for a C kernel: `softmax(in0, out0, rows, cols)`."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    exp = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exp / exp.sum(dim=-1, keepdim=True)


def inputs(make: Make, rows: int, cols: int) -> list[Spec | int]:
    return [make.normal(rows, cols), rows, cols]


PROBLEM = Problem(
    name="softmax",
    reference=reference,
    inputs=inputs,
    arguments=("in0", "out0", "rows", "cols"),
    workloads=[Workload({"rows": 96, "cols": 512}), Workload({"rows": 3, "cols": 257}, timed=False)],
    bytes="2 * rows * cols * itemsize",
    flops="5 * rows * cols",
    bound="memory",
    reduction="cols",
    scale=reference,
    vary={"rows": (1, 16), "cols": (1, 600)},
    layouts=("contiguous", "offset"),
)
