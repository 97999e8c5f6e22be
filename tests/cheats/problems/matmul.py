"""A product of two float32 matrices, in full precision; large enough that leaving it out shows on the clock."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def inputs(make: Make, m: int, n: int, k: int) -> list[Spec]:
    return [make.normal(m, k), make.normal(k, n)]


def scale(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.square() @ b.square()).sqrt()


PROBLEM = Problem(
    name="matmul",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"m": 128, "n": 128, "k": 512}), Workload({"m": 7, "n": 33, "k": 65}, timed=False)],
    bytes="(m * k + k * n + m * n) * itemsize",
    flops="2 * m * n * k",
    bound="compute",
    reduction="k",
    scale=scale,
    vary={"m": (1, 40), "n": (1, 40), "k": (1, 300)},
)
