"""Sum over the last dimension of a (rows, cols) matrix, in the matrix's dtype."""

import functools
from collections.abc import Callable

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    """The row sums; half precision is widened first and rounded once, at the end."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).sum(dim=-1).to(x.dtype)


def terms(x: torch.Tensor) -> torch.Tensor:
    """The size of what is added up: positive and negative terms cancel."""
    return x.square().sum(dim=-1).sqrt()


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


def torch_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=-1)


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(torch_sum, mode="max-autotune-no-cudagraphs", dynamic=False)


def edge(rows: int, cols: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it truncates to bfloat16 where hardware rounds to nearest.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"rows": rows, "cols": cols}, dtype, devices, timed=False)


def cuda(rows: int, cols: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"rows": rows, "cols": cols}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="reduce",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(8192, 8192),
        cuda(65536, 1024),  # many short rows
        cuda(64, 1048576),  # fewer rows than a device has processors: a row must be divided
        cuda(4096, 4096, "float32"),
        cuda(8192, 8192, "float16"),
        Workload({"rows": 32, "cols": 2500}, "float32", devices=("cpu",)),
        edge(2, 10007),
        edge(37, 1023),
        edge(8, 1025),
        edge(9, 513, "float16"),
        edge(16, 1000, "bfloat16"),
        edge(3, 4099, "bfloat16"),
    ],
    bytes="rows * cols * itemsize + rows * itemsize",
    flops="rows * cols",
    bound="memory",
    reduction="cols",
    scale=terms,
    vary={"rows": (1, 64), "cols": (1, 8000)},
    layouts=LAYOUTS,
    comparisons={"torch": torch_sum, "torch.compile": lambda x: _compiled()(x)},
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
