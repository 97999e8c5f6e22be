"""Softmax over the last dimension of a float32 matrix, for a C kernel: `softmax(in0, out0, rows, cols)`."""

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


def cpu(rows: int, cols: int, timed: bool = False) -> Workload:
    return Workload({"rows": rows, "cols": cols}, "float32", devices=("cpu",), timed=timed)


PROBLEM = Problem(
    name="softmax",
    reference=reference,
    inputs=inputs,
    arguments=("in0", "out0", "rows", "cols"),
    workloads=[
        cpu(1024, 4096, timed=True),  # 34 MB: leaves the caches of a desktop
        cpu(1000, 781, timed=True),  # 6 MB: leaves the L2, and its rows start anywhere in a vector
        cpu(1, 4096),
        cpu(257, 2),
        cpu(3, 13),
        cpu(61, 1021),
    ],
    bytes="2 * rows * cols * itemsize",
    flops="5 * rows * cols",  # subtract, exponentiate, add up, divide, compare for the maximum
    bound="memory",
    reduction="cols",
    scale=terms,
    vary={"rows": (1, 64), "cols": (1, 3000)},
    layouts=("contiguous", "offset"),
    comparisons={"torch": lambda x, rows, cols: torch.softmax(x, dim=-1)},
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
