"""Softmax over the last dimension of a float32 matrix, for a CUDA kernel: `softmax(in0, out0, rows, cols, stream)`."""

import torch

from kopt_mcp.problem import Make, Problem, Spec, Workload


def reference(x: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """exp(x - max) / sum(exp(x - max)), row by row."""
    exp = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exp / exp.sum(dim=-1, keepdim=True)


def terms(x: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """All that is added up is positive, but an exponential is off by as much as what it is taken of."""
    size = x.abs().add_(x.amax(dim=-1, keepdim=True).abs()).div_(cols**0.5)
    return size.mul_(reference(x, rows, cols))


def inputs(make: Make, rows: int, cols: int) -> list[Spec | int]:
    return [make.normal(rows, cols), rows, cols]


def cuda(rows: int, cols: int, timed: bool = False) -> Workload:
    return Workload({"rows": rows, "cols": cols}, "float32", devices=("cuda",), timed=timed)


PROBLEM = Problem(
    name="softmax",
    reference=reference,
    inputs=inputs,
    arguments=("in0", "out0", "rows", "cols"),
    workloads=[
        cuda(4096, 4096, timed=True),
        cuda(32768, 1024, timed=True),
        cuda(2048, 32768, timed=True),
        cuda(1, 4096),
        cuda(257, 2),
        cuda(61, 1021),
    ],
    bytes="2 * rows * cols * itemsize",
    flops="5 * rows * cols",  # compare for the maximum, subtract, exponentiate, add up, divide
    bound="memory",
    reduction="cols",
    scale=terms,
    vary={"rows": (1, 64), "cols": (1, 5000)},
    layouts=("contiguous", "offset"),
    comparisons={"torch": lambda x, rows, cols: torch.softmax(x, dim=-1)},
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
