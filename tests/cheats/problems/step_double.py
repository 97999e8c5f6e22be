"""p -= 0.05 * g in place and in float64: a small change of an input that is its own output."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(p: torch.Tensor, g: torch.Tensor) -> None:
    p.sub_(g, alpha=0.05)


def inputs(make: Make, n: int) -> list[Spec]:
    return [make.normal(n), make.normal(n)]


PROBLEM = Problem(
    name="step",
    reference=reference,
    inputs=inputs,
    workloads=[
        Workload({"n": 200}, dtype="float64"),
        Workload({"n": 100}, dtype="float64", timed=False),
    ],
    bytes="3 * n * itemsize",
    flops="2 * n",
    bound="memory",
    mutates=(0,),
    vary={"n": (1, 200)},
)
