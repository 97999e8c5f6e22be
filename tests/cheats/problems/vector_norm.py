"""Layer normalisation of a single row."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt()


def inputs(make: Make, cols: int) -> list[Spec]:
    return [make.normal(cols)]


PROBLEM = Problem(
    name="vector_norm",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"cols": 50_000}), Workload({"cols": 600}, timed=False)],
    bytes="2 * cols * itemsize",
    flops="6 * cols",
    bound="memory",
)
