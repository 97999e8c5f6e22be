"""Rows written into a cache in place: an input that is an output, and nothing to compute."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor, cache: torch.Tensor) -> None:
    cache[x.shape[0] :] = x


def inputs(make: Make, n: int, d: int) -> list[Spec]:
    return [make.normal(n, d), make.normal(2 * n, d)]


PROBLEM = Problem(
    name="append",
    reference=reference,
    inputs=inputs,
    workloads=[Workload({"n": 512, "d": 1024}), Workload({"n": 5, "d": 33}, timed=False)],
    bytes="2 * n * d * itemsize",
    flops="0",
    bound="memory",
    mutates=(1,),
    vary={"n": (1, 40), "d": (1, 300)},
)
