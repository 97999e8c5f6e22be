"""Root-mean-square normalisation over the last dimension of a (rows, cols) matrix, with a weight."""

import functools
from collections.abc import Callable
from importlib.util import find_spec

import torch

from kopt_mcp.problem import LAYOUTS, Input, Make, Problem, Workload

EPS = 1e-6


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight; half precision is widened first and rounded once, at the end."""
    wide = torch.promote_types(x.dtype, torch.float32)
    xw = x.to(wide)
    mean_square = xw.square().mean(dim=-1, keepdim=True)
    return (xw / (mean_square + eps).sqrt() * weight.to(wide)).to(x.dtype)


def inputs(make: Make, rows: int, cols: int) -> list[Input]:
    return [make.normal(rows, cols), make.normal(cols, shift=1.0, scale=0.25), EPS]


def torch_rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    return torch.compile(torch_rmsnorm, mode="max-autotune-no-cudagraphs", dynamic=False)


def liger_rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)


def edge(rows: int, cols: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it truncates to bfloat16 where hardware rounds to nearest.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"rows": rows, "cols": cols}, dtype, devices, timed=False)


def cuda(rows: int, cols: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"rows": rows, "cols": cols}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="rmsnorm",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(8192, 8192),  # Llama 70B
        cuda(16384, 4096),  # Llama 8B, prefill
        cuda(16384, 5120),  # a width that is no power of two
        cuda(4096, 4096, "float32"),
        cuda(1, 8192),  # decoding, one sequence
        cuda(64, 4096),  # decoding, a batch
        cuda(8192, 8192, "float16"),
        Workload({"rows": 32, "cols": 1000}, "float32", devices=("cpu",)),
        edge(1, 257),
        edge(37, 1021),
        edge(9, 513, "float16"),
        edge(16, 1000, "bfloat16"),
        edge(3, 4099, "bfloat16"),
    ],
    bytes="(2 * rows * cols + cols) * itemsize",  # the weight once, not once per row
    flops="4 * rows * cols",  # square, add up, and two multiplications for the output
    bound="memory",
    reduction="cols",
    # The squares are all positive: a relative error of their sum is one of the result.
    scale=reference,
    vary={"rows": (1, 64), "cols": (1, 5000)},
    layouts=LAYOUTS,
    comparisons={
        "torch": torch_rmsnorm,
        "torch.compile": lambda *args: _compiled()(*args),
        **({"liger": liger_rmsnorm} if find_spec("liger_kernel") else {}),
    },
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
