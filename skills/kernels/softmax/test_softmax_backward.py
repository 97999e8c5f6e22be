"""Backward of softmax over the last dimension, from the forward pass's output."""

import functools
from collections.abc import Callable

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y * (dy - sum(dy * y)), row by row; half precision is widened first and rounded once, at the end."""
    wide = torch.promote_types(y.dtype, torch.float32)
    dy, out = dy.to(wide), y.to(wide)
    dot = (dy * out).sum(dim=-1, keepdim=True)
    return (out * (dy - dot)).to(y.dtype)


def terms(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The size of what is added up: dy and the sum's own terms may cancel."""
    return y * (dy.abs() + (dy * y).square().sum(dim=-1, keepdim=True).sqrt())


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    # Probabilities, which add up to about 1: no other distribution makes sense for them.
    return [make.normal(rows, cols), make.uniform(rows, cols, low=0.0, high=2.0 / cols)]


def torch_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    return torch.compile(reference, mode="max-autotune-no-cudagraphs", dynamic=False)


def edge(rows: int, cols: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it truncates to bfloat16 where hardware rounds to nearest.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"rows": rows, "cols": cols}, dtype, devices, timed=False)


def cuda(rows: int, cols: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"rows": rows, "cols": cols}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="softmax-backward",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(8192, 8192),
        cuda(32768, 4096),
        cuda(4096, 4096, "float32"),
        cuda(128, 1024, "float16"),
        Workload({"rows": 32, "cols": 1000}, "float32", devices=("cpu",)),
        edge(1, 257),
        edge(37, 1021),
        edge(9, 513, "float16"),
        edge(16, 1000, "bfloat16"),
    ],
    bytes="3 * rows * cols * itemsize",
    flops="4 * rows * cols",  # multiply and add for the sum, subtract, multiply
    bound="memory",
    reduction="cols",
    scale=terms,
    vary={"rows": (1, 64), "cols": (1, 5000)},
    layouts=LAYOUTS,
    comparisons={"torch": torch_backward, "torch.compile": lambda dy, y: _compiled()(dy, y)},
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
