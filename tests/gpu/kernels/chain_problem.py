"""A recurrence over a small vector: nothing to do, many times."""

import torch

from kopt_mcp.problem import Problem, Workload

STEPS = 24


def reference(x: torch.Tensor) -> torch.Tensor:
    for _ in range(STEPS):
        x = x * 0.5 + 1.0
    return x


PROBLEM = Problem(
    name="chain",
    reference=reference,
    inputs=lambda make, n: [make.normal(n)],
    workloads=[Workload({"n": 4096}, "float32")],
    bytes="2 * n * itemsize",
    flops=f"{2 * STEPS} * n",
    bound="latency",
)
