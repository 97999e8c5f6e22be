"""A vector divided by its root mean square (as of a flat gradient), for a C kernel: `unit_vector(in0, out0, n)`."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor, n: int) -> torch.Tensor:
    return x / (x.square().mean() + 1e-6).sqrt()


def inputs(make: Make, n: int) -> list[Spec | int]:
    return [make.normal(n), n]


PROBLEM = Problem(
    name="unit_vector",
    reference=reference,
    inputs=inputs,
    arguments=("in0", "out0", "n"),
    workloads=[Workload({"n": 1_000_003}), Workload({"n": 129}, timed=False), Workload({"n": 1023}, timed=False)],
    bytes="2 * n * itemsize",
    flops="4 * n",
    bound="memory",
    vary={"n": (1, 5000)},
    layouts=("contiguous", "offset"),
)
