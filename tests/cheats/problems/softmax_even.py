"""Softmax as most declare it: sizes that are multiples of eight, any others in `vary`, rows with gaps."""

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    exp = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exp / exp.sum(dim=-1, keepdim=True)


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


PROBLEM = Problem(
    name="softmax",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"rows": 256, "cols": 512}), Workload({"rows": 8, "cols": 1024}, timed=False)],
    bytes="2 * rows * cols * itemsize",
    flops="5 * rows * cols",
    bound="memory",
    reduction="cols",
    scale=reference,
    vary={"rows": (1, 64), "cols": (1, 2000)},
    layouts=LAYOUTS,
)
