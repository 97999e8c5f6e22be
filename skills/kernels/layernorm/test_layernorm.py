"""Layer normalisation over the last dimension of a (rows, cols) matrix, with weight and bias."""

import functools
from collections.abc import Callable
from importlib.util import find_spec

import torch

from kopt_mcp.problem import LAYOUTS, Input, Make, Problem, Workload

EPS = 1e-5


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias; half precision is widened first, rounded once at the end."""
    wide = torch.promote_types(x.dtype, torch.float32)
    centred = x.to(wide) - x.to(wide).mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return (centred / (variance + eps).sqrt() * weight.to(wide) + bias.to(wide)).to(x.dtype)


def terms(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """The size of what is added up: where a row's values lie close together, x and the mean cancel."""
    rms = x.square().mean(dim=-1, keepdim=True).sqrt()
    deviation = (x.var(dim=-1, keepdim=True, correction=0) + eps).sqrt()
    return rms / deviation * weight.abs() + bias.abs()


def inputs(make: Make, rows: int, cols: int) -> list[Input]:
    return [make.normal(rows, cols), make.normal(cols, shift=1.0, scale=0.25), make.normal(cols), EPS]


def torch_layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    return torch.compile(torch_layernorm, mode="max-autotune-no-cudagraphs", dynamic=False)


def liger_layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, eps)


def edge(rows: int, cols: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it truncates to bfloat16 where hardware rounds to nearest.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"rows": rows, "cols": cols}, dtype, devices, timed=False)


def cuda(rows: int, cols: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"rows": rows, "cols": cols}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="layernorm",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(8192, 8192),
        cuda(32768, 1024),  # encoders: BERT large, ViT-L
        cuda(16384, 2560),  # a width that is no power of two
        cuda(4096, 4096, "float32"),
        cuda(64, 4096),  # decoding
        cuda(8192, 8192, "float16"),
        Workload({"rows": 32, "cols": 1000}, "float32", devices=("cpu",)),
        edge(1, 257),
        edge(37, 1021),
        edge(9, 513, "float16"),
        edge(16, 1000, "bfloat16"),
        edge(3, 4099, "bfloat16"),
    ],
    bytes="(2 * rows * cols + 2 * cols) * itemsize",  # weight and bias once, not once per row
    flops="7 * rows * cols",  # two sums, subtract, square, and three operations for the output
    bound="memory",
    reduction="cols",
    scale=terms,
    vary={"rows": (1, 64), "cols": (2, 5000)},
    layouts=LAYOUTS,
    comparisons={
        "torch": torch_layernorm,
        "torch.compile": lambda *args: _compiled()(*args),
        **({"liger": liger_layernorm} if find_spec("liger_kernel") else {}),
    },
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
