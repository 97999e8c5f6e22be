"""Softmax over the last dimension: the problem of several planted kernels."""

import torch

from kopt_mcp.problem import Problem, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    exp = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exp / exp.sum(dim=-1, keepdim=True)


PROBLEM = Problem(
    name="softmax",
    reference=reference,
    inputs=lambda make, rows, cols: [make.normal(rows, cols)],
    workloads=[
        Workload({"rows": 16384, "cols": 4096}, "float32"),
        Workload({"rows": 3072, "cols": 65536}, "float32"),
    ],
    bytes="2 * rows * cols * itemsize",
    flops="5 * rows * cols",
    bound="memory",
    reduction="cols",
    scale=reference,
)
