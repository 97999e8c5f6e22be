"""What a reference costs, counted on shapes alone: bytes it returns, operations, and its longest sum.

For tasks that declare none of these. The reference runs once on the device `meta`, where nothing is computed. Where it
looks at values (an index, a loop over lengths) it cannot run there, and nothing is known. Harness only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kopt_mcp.evaluator.generated import placed
from kopt_mcp.problem import Spec

_COMPUTE_BOUND = 40.0
"""Operations a byte above which a problem is called compute bound; no verdict rests on it."""
_LATENCY_BYTES = 1 << 20
_ON_CPU = 64 << 20
"""Bytes up to which a workload is for a CPU too."""
_LANES = 1024
"""Partial sums that a kernel is taken to keep of a long sum."""
_PRODUCTS = {"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv"}
_REDUCING = {"sum", "mean", "var", "var_mean", "std", "norm", "linalg_vector_norm", "logsumexp", "prod"}
_ALONG = {"cumsum", "cumprod", "_softmax", "_log_softmax", "logcumsumexp"}
_NORMS = {"native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "rms_norm"}
_LEAVING_OUT = {"slice", "select", "index", "index_select", "gather", "take", "embedding", "diagonal", "tril", "triu"}
_LEAVING_OUT |= {"masked_select", "nonzero", "unfold", "as_strided", "where", "masked_fill", "topk", "sort"}
_LEAVING_OUT |= {"max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "native_dropout"}


@dataclass(frozen=True)
class Costs:
    """Of one call of a reference."""

    output_bytes: int
    flops: float
    """As the reference does them: a multiply-add of a product counts as two, each other operator as one an element."""
    longest: int
    """Terms of the longest chain of additions, at least 1: those of a product; of a sum what is left of them where it
    is taken in lanes and then in a tree."""
    partial: bool
    """Whether it may leave out part of an input, so that not all of it need be read."""


@contextmanager
def on_shapes() -> Iterator[None]:
    """Run a task's code on tensors that have a shape and a dtype, and no values."""
    torch.empty(1, device="meta").mul(2)  # the first such operator imports a thousand modules, which must see no mode
    with placed("meta"), torch.no_grad():
        yield


def counted(function: Callable[..., Any], args: Sequence[Any]) -> Costs | None:
    """The costs of `function` on `args`, tensors of any device or recipes of them; None if unknown."""
    watch = _Watch()
    try:
        with on_shapes(), FlopCounterMode(display=False) as flops, watch:
            returned = function(*[_shape_of(a) for a in args])
    except Exception:  # whatever a task's code does on tensors without values
        return None
    outputs = [t for t in (returned if isinstance(returned, (tuple, list)) else [returned]) if torch.is_tensor(t)]
    return Costs(
        output_bytes=sum(t.numel() * t.element_size() for t in outputs),
        flops=float(flops.get_total_flops() + watch.elements),
        longest=max(1, watch.terms),
        partial=watch.partial,
    )


def devices_of(moved: float, dtype: str) -> tuple[str, ...]:
    """What a workload is for: a GPU, and a CPU too where it is small.

    Not in bfloat16: without a GPU Triton's interpreter runs the kernel, and truncates where hardware rounds to nearest.
    """
    return ("cpu", "cuda") if moved <= _ON_CPU and dtype != "bfloat16" else ("cuda",)


def bound_of(moved: float, costs: Costs | None) -> Literal["memory", "compute", "latency"]:
    """What limits a good kernel, by its operations a byte; `memory` where nothing is known."""
    if costs and costs.flops > _COMPUTE_BOUND * max(1.0, moved):
        return "compute"
    return "latency" if 0 < moved < _LATENCY_BYTES else "memory"


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the longest sum, and what leaves values out, among the operators that go through torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.terms = 0
        self.elements = 0
        self.partial = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = str(function).removeprefix("aten.").split(".")[0]
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if tensors:
            self.terms = max(self.terms, _terms(name, tensors, args, out))
            if not function.is_view and not _is_product(name):
                self.elements += max(t.numel() for t in (*tensors, *_tensors(out)))
            self.partial |= name in _LEAVING_OUT or ("convolution" in name and _skips(tensors[1], args))
        return out


def _is_product(name: str) -> bool:
    """Whether an operator is counted as a product of matrices."""
    return name in _PRODUCTS or "convolution" in name or "scaled_dot_product" in name


def _terms(name: str, tensors: list[torch.Tensor], args: Any, out: Any) -> int:
    """Terms of one operator's longest chain of additions."""
    first = tensors[0]
    if name in _PRODUCTS:
        return tensors[-2].shape[-1]  # what is added to a product comes before its factors
    if "convolution" in name:
        return math.prod(tensors[1].shape[1:])
    if "scaled_dot_product" in name:
        return max(first.shape[-1], tensors[1].shape[-2])
    if name in _ALONG and first.dim():
        return _chain(first.shape[args[1]] if isinstance(args[1], int) else first.numel())
    if name in _REDUCING | _NORMS:
        smaller = next((t.numel() for t in _tensors(out) if 0 < t.numel() < first.numel()), first.numel())
        return _chain(first.numel() // smaller)
    return 0


def _chain(terms: int) -> int:
    """What a sum of many terms leaves of them, one after another: no kernel adds up a million with one accumulator."""
    return min(terms, max(int(math.log2(max(terms, 1)) ** 2), terms // _LANES))


def _skips(weight: torch.Tensor, args: Any) -> bool:
    """Whether a convolution steps over more than its window covers."""
    stride, dilation = args[3], args[5]
    return any(s > d * (k - 1) + 1 for s, d, k in zip(stride, dilation, weight.shape[2:], strict=False))


def _tensors(out: Any) -> list[torch.Tensor]:
    """Statistics come last: they are what the sums were."""
    found = list(out) if isinstance(out, (tuple, list)) else [out]
    return [t for t in reversed(found) if isinstance(t, torch.Tensor)]


def _shape_of(value: Any) -> Any:
    if isinstance(value, Spec):
        return torch.empty(value.shape, dtype=getattr(torch, value.dtype), device="meta")
    return value.to("meta") if isinstance(value, torch.Tensor) else value
