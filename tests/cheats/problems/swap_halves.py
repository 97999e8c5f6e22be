"""The halves of a vector swapped: bytes are moved and nothing is computed."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[x.numel() // 2 :], x[: x.numel() // 2]])


def inputs(make: Make, n: int) -> list[Spec]:
    return [make.normal(n)]


PROBLEM = Problem(
    name="swap-halves",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"n": 1 << 20}), Workload({"n": 256}, timed=False)],
    bytes="2 * n * itemsize",
    flops="0",
    bound="memory",
    vary={"n": (1, 3000)},
)
