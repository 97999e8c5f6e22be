"""Softmax over the last dimension of a (rows, cols) matrix."""

import functools
from collections.abc import Callable
from importlib.util import find_spec

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def reference(x: torch.Tensor) -> torch.Tensor:
    """exp(x - max) / sum(exp(x - max)), row by row; half precision is widened first and rounded once, at the end."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    exp = (wide - wide.amax(dim=-1, keepdim=True)).exp()
    return (exp / exp.sum(dim=-1, keepdim=True)).to(x.dtype)


def terms(x: torch.Tensor) -> torch.Tensor:
    """All that is added up is positive, but an exponential is off by as much as what it is taken of.

    exp2(x * log2(e) - max * log2(e)), or exp(x - log(sum)), is right for an x and a maximum off by a rounding each.
    """
    size = x.abs().add_(x.amax(dim=-1, keepdim=True).abs()).div_(x.shape[-1] ** 0.5)
    return size.mul_(reference(x))


def inputs(make: Make, rows: int, cols: int) -> list[Spec]:
    return [make.normal(rows, cols)]


def torch_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softmax(x, dim=-1)


@functools.cache
def _compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(torch_softmax, mode="max-autotune-no-cudagraphs", dynamic=False)


def liger_softmax(x: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)


def edge(rows: int, cols: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it truncates to bfloat16 where hardware rounds to nearest.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"rows": rows, "cols": cols}, dtype, devices, timed=False)


def cuda(rows: int, cols: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"rows": rows, "cols": cols}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="softmax",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(8192, 8192),
        cuda(32768, 4096),  # attention scores: many rows of a context length
        cuda(4096, 4096, "float32"),
        cuda(4096, 32768),  # a vocabulary of 32 k: one row no longer fits a small block
        cuda(128, 1024),  # decoding: too small to fill the device
        cuda(8192, 8192, "float16"),
        Workload({"rows": 32, "cols": 1000}, "float32", devices=("cpu",)),
        edge(1, 257),
        edge(37, 1021),
        edge(5, 2),
        edge(9, 513, "float16"),
        edge(16, 1000, "bfloat16"),
        edge(3, 4099, "bfloat16"),
    ],
    bytes="2 * rows * cols * itemsize",
    flops="5 * rows * cols",  # compare for the maximum, subtract, exponentiate, add up, divide
    bound="memory",
    reduction="cols",
    scale=terms,
    vary={"rows": (1, 64), "cols": (1, 5000)},
    layouts=LAYOUTS,
    comparisons={
        "torch": torch_softmax,
        "torch.compile": lambda x: _compiled()(x),
        **({"liger": liger_softmax} if find_spec("liger_kernel") else {}),
    },
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
