"""A matrix product, in the type that the matrix units take and in the one that they do not."""

import torch

from kopt_mcp.problem import Problem, Workload


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(a.dtype, torch.float32)
    return (a.to(wide) @ b.to(wide)).to(a.dtype)


def terms(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.square() @ b.square()).sqrt()


PROBLEM = Problem(
    name="matmul",
    reference=reference,
    inputs=lambda make, n: [make.normal(n, n), make.normal(n, n, scale=n**-0.5)],
    workloads=[Workload({"n": 4096}, "float16"), Workload({"n": 2048}, "float32")],
    bytes="3 * n * n * itemsize",
    flops="2 * n**3",
    bound="compute",
    reduction="n",
    scale=terms,
)
