"""How often each of 64 values occurs in each row: integers in, integers out."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload

BINS = 64


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(x.shape[0], BINS, dtype=torch.int64).scatter_add_(1, x, torch.ones_like(x))


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.integers(rows, cols, high=BINS)]


PROBLEM = Problem(
    name="histogram",
    reference=reference,
    inputs=inputs,
    workloads=[
        Workload({"rows": 64, "cols": 1000}, dtype="int64"),
        Workload({"rows": 5, "cols": 129}, dtype="int64", timed=False),
    ],
    bytes="(rows * cols + rows * 64) * 8",
    flops="rows * cols",
    bound="memory",
    vary={"rows": (1, 40), "cols": (1, 600)},
)
