"""Backward of root-mean-square normalisation: the gradients of x and weight. The row statistics are computed again."""

import functools
from collections.abc import Callable

import torch

from kopt_mcp.problem import LAYOUTS, Input, Make, Problem, Workload

EPS = 1e-6
Gradients = tuple[torch.Tensor, torch.Tensor]


def reference(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    """The chain rule by hand; half precision is widened first and rounded once, at the end."""
    wide = torch.promote_types(x.dtype, torch.float32)
    dy, xw, w = dy.to(wide), x.to(wide), weight.to(wide)
    deviation = (xw.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    normal = xw / deviation
    scaled = dy * w
    along_normal = (scaled * normal).mean(dim=-1, keepdim=True)
    dx = (scaled - normal * along_normal) / deviation
    dweight = (dy * normal).sum(dim=0)
    return dx.to(x.dtype), dweight.to(weight.dtype)


def terms(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    """The size of what is added up: the part of dy along x is taken away from it, and may be nearly all of it."""
    deviation = (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    normal = x.abs() / deviation
    scaled = (dy * weight).abs()
    dx = (scaled + normal * (scaled * normal).square().mean(dim=-1, keepdim=True).sqrt()) / deviation
    return dx, (dy * normal).square().sum(dim=0).sqrt()


def inputs(make: Make, rows: int, cols: int) -> list[Input]:
    return [make.normal(rows, cols), make.normal(rows, cols), make.normal(cols, shift=1.0, scale=0.25), EPS]


@functools.cache
def _compiled() -> Callable[..., Gradients]:
    return torch.compile(reference, mode="max-autotune-no-cudagraphs", dynamic=False)


def edge(rows: int, cols: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it truncates to bfloat16 where hardware rounds to nearest.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"rows": rows, "cols": cols}, dtype, devices, timed=False)


def cuda(rows: int, cols: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"rows": rows, "cols": cols}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="rmsnorm-backward",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(8192, 8192),
        cuda(32768, 1024),
        cuda(4096, 4096, "float32"),
        cuda(16384, 2560, "float16"),
        Workload({"rows": 32, "cols": 1000}, "float32", devices=("cpu",)),
        edge(1, 257),
        edge(131, 67),
        edge(9, 513, "float16"),
        edge(16, 1000, "bfloat16"),
    ],
    bytes="(3 * rows * cols + 2 * cols) * itemsize",  # dy, x, dx; weight, dweight
    flops="11 * rows * cols",  # mean square 2, normalise 1, dy * weight 1, the sum along x 2, dx 3, column sums 2
    bound="memory",
    reduction="max(rows, cols)",
    scale=terms,
    vary={"rows": (1, 200), "cols": (1, 3000)},
    layouts=LAYOUTS,
    comparisons={"torch": reference, "torch.compile": lambda *args: _compiled()(*args)},
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
