"""y += 0.5 * x in place, at a size for a GPU."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor, y: torch.Tensor) -> None:
    y.add_(x, alpha=0.5)


def inputs(make: Make, n: int) -> list[Spec]:
    return [make.normal(n), make.normal(n)]


PROBLEM = Problem(
    name="scaled-add",
    entry="scaled_add",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"n": 1 << 24}), Workload({"n": 257}, timed=False)],
    bytes="3 * n * itemsize",
    flops="2 * n",
    bound="memory",
    mutates=(1,),
    scale=lambda x, y: (x.square() + y.square()).sqrt(),
    reduction="2",
    vary={"n": (1, 3000)},
)
