"""Backward of layer normalisation: the gradients of x, weight and bias. The row statistics are computed again."""

import functools
from collections.abc import Callable

import torch

from kopt_mcp.problem import LAYOUTS, Input, Make, Problem, Workload

EPS = 1e-5
Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def reference(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    """The chain rule by hand; half precision is widened first and rounded once, at the end."""
    wide = torch.promote_types(x.dtype, torch.float32)
    dy, xw, w = dy.to(wide), x.to(wide), weight.to(wide)
    centred = xw - xw.mean(dim=-1, keepdim=True)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    normal = centred / deviation
    scaled = dy * w
    along_normal = (scaled * normal).mean(dim=-1, keepdim=True)
    along_mean = scaled.mean(dim=-1, keepdim=True)
    dx = (scaled - normal * along_normal - along_mean) / deviation
    dweight = (dy * normal).sum(dim=0)
    dbias = dy.sum(dim=0)
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)


def terms(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    """The size of what is added up: where a row's values lie close together, x and the mean cancel."""
    deviation = (x.var(dim=-1, keepdim=True, correction=0) + eps).sqrt()
    centred = (x - x.mean(dim=-1, keepdim=True)).abs()
    normal = (centred + x.square().mean(dim=-1, keepdim=True).sqrt()) / deviation
    scaled = (dy * weight).abs()
    typical = scaled.square().mean(dim=-1, keepdim=True).sqrt()
    dx = (scaled + typical * (1.0 + normal)) / deviation
    return dx, (dy * normal).square().sum(dim=0).sqrt(), dy.square().sum(dim=0).sqrt()


def inputs(make: Make, rows: int, cols: int) -> list[Input]:
    return [make.normal(rows, cols), make.normal(rows, cols), make.normal(cols, shift=1.0, scale=0.25), EPS]


@functools.cache
def _compiled() -> Callable[..., Gradients]:
    return torch.compile(reference, mode="max-autotune-no-cudagraphs", dynamic=False)


def torch_backward(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    variance, mean = torch.var_mean(x.float(), dim=-1, keepdim=True, correction=0)
    rstd = (variance + eps).rsqrt()
    bias = torch.empty_like(weight)
    wanted = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(dy, x, [x.shape[-1]], mean, rstd, weight, bias, wanted)


def edge(rows: int, cols: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it truncates to bfloat16 where hardware rounds to nearest.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"rows": rows, "cols": cols}, dtype, devices, timed=False)


def cuda(rows: int, cols: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"rows": rows, "cols": cols}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="layernorm-backward",
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
    bytes="(3 * rows * cols + 3 * cols) * itemsize",  # dy, x, dx; weight, dweight, dbias
    flops="16 * rows * cols",  # mean 1, variance 3, normalise 1, dy * weight 1, two row sums 3, dx 4, column sums 3
    bound="memory",
    reduction="max(rows, cols)",
    scale=terms,
    vary={"rows": (1, 200), "cols": (2, 3000)},
    layouts=LAYOUTS,
    comparisons={"torch": torch_backward, "torch.compile": lambda *args: _compiled()(*args)},
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
