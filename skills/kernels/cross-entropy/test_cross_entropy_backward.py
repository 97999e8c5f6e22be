"""Backward of cross entropy: the gradient of the logits, given one gradient a row. The row sums are computed again."""

import functools
from collections.abc import Callable

import torch

from kopt_mcp.problem import LAYOUTS, Make, Problem, Spec, Workload


def _parts(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    exp = (wide - wide.amax(dim=-1, keepdim=True)).exp()
    chosen = torch.zeros_like(exp).scatter_(-1, labels[:, None], 1.0)
    return exp / exp.sum(dim=-1, keepdim=True), chosen


def reference(logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """(softmax(logits) - one_hot(labels)) * grad; half precision is widened first and rounded once, at the end."""
    probability, chosen = _parts(logits, labels)
    return ((probability - chosen) * grad[:, None]).to(logits.dtype)


def terms(logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """The size of what is added up: where the label is nearly certain, its probability and 1 cancel.

    And of what the exponential is taken of: exp(x - log(sum(exp(x)))) is off by a rounding of either.
    """
    probability, chosen = _parts(logits, labels)
    size = logits.abs().add_(logits.amax(dim=-1, keepdim=True).abs()).div_(logits.shape[-1] ** 0.5).add_(1.0)
    return size.mul_(probability).add_(chosen).mul_(grad.abs()[:, None])


def inputs(make: Make, rows: int, vocab: int) -> list[Spec]:
    return [make.normal(rows, vocab), make.integers(rows, low=0, high=vocab), make.normal(rows, dtype="float32")]


@functools.cache
def _compiled() -> Callable[..., torch.Tensor]:
    return torch.compile(reference, mode="max-autotune-no-cudagraphs", dynamic=False)


def edge(rows: int, vocab: int, dtype: str = "float32") -> Workload:
    # Without a GPU, Triton's interpreter runs the kernel; it truncates to bfloat16 where hardware rounds to nearest.
    devices = ("cuda",) if dtype == "bfloat16" else ("cpu", "cuda")
    return Workload({"rows": rows, "vocab": vocab}, dtype, devices, timed=False)


def cuda(rows: int, vocab: int, dtype: str = "bfloat16") -> Workload:
    return Workload({"rows": rows, "vocab": vocab}, dtype, devices=("cuda",))


PROBLEM = Problem(
    name="cross-entropy-backward",
    reference=reference,
    inputs=inputs,
    workloads=[
        cuda(8192, 128256),
        cuda(16384, 32000),
        cuda(4096, 50257, "float32"),
        Workload({"rows": 16, "vocab": 5000}, "float32", devices=("cpu",)),
        edge(1, 257),
        edge(7, 2049),
        edge(9, 513, "float16"),
        edge(16, 1000, "bfloat16"),
        edge(3, 50257, "bfloat16"),
    ],
    bytes="2 * rows * vocab * itemsize + rows * (8 + 4)",  # logits in, their gradient out; a label and a gradient a row
    flops="6 * rows * vocab",  # compare for the maximum, subtract, exponentiate, add up, divide, multiply
    bound="memory",
    reduction="vocab",
    scale=terms,
    vary={"rows": (1, 64), "vocab": (2, 9000)},
    layouts=LAYOUTS,
    comparisons={"torch": reference, "torch.compile": lambda *args: _compiled()(*args)},
)

test_kernel = PROBLEM.as_test()

if __name__ == "__main__":
    raise SystemExit(PROBLEM.main())
