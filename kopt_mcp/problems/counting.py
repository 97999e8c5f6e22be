"""What a reference costs, counted on shapes alone: bytes it returns, operations, and its longest sum.

For tasks that declare none of these. The reference runs once on the device `meta`, where nothing is computed. Where it
looks at values (an index, a loop over lengths) it cannot run there, and nothing is known. Harness only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kopt_mcp.evaluator.generated import placed

_COMPUTE_BOUND = 40.0
"""Operations a byte above which a problem is called compute bound; no verdict rests on it."""
_LATENCY_BYTES = 1 << 20
_REDUCING = {"sum", "mean", "var", "var_mean", "std", "norm", "linalg_vector_norm", "logsumexp", "prod"}
_ALONG = {"cumsum", "cumprod", "_softmax", "_log_softmax", "logcumsumexp"}
_NORMS = {"native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "rms_norm"}


@dataclass(frozen=True)
class Costs:
    """Of one call of a reference."""

    output_bytes: int
    flops: float
    """Of matrix products and convolutions as the reference does them; one for each output element where it has none."""
    longest: int
    """Terms of the longest sum, at least 1."""


def counted(function: Callable[..., Any], args: Sequence[Any]) -> Costs | None:
    """The costs of `function` on `args`, whose tensors may be of any device and are not looked at; None if unknown."""
    longest = _Longest()
    try:
        with placed("meta"), torch.no_grad(), FlopCounterMode(display=False) as flops, longest:
            returned = function(*[_shape_of(a) for a in args])
    except Exception:  # whatever a task's code does on tensors without values
        return None
    outputs = [t for t in (returned if isinstance(returned, (tuple, list)) else [returned]) if torch.is_tensor(t)]
    elements = sum(t.numel() for t in outputs)
    total = float(flops.get_total_flops()) or float(elements * max(1, longest.terms))
    return Costs(sum(t.numel() * t.element_size() for t in outputs), total, max(1, longest.terms))


def bound_of(read_bytes: float, costs: Costs | None) -> str:
    """What limits a good kernel, by its operations a byte; `memory` where nothing is known."""
    moved = read_bytes + (costs.output_bytes if costs else 0)
    if costs and costs.flops > _COMPUTE_BOUND * max(1.0, moved):
        return "compute"
    return "latency" if 0 < moved < _LATENCY_BYTES else "memory"


class _Longest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the longest sum among the operators that go through torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.terms = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = str(function).removeprefix("aten.").split(".")[0]
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if tensors:
            self.terms = max(self.terms, _terms(name, tensors, args, out))
        return out


def _terms(name: str, tensors: list[torch.Tensor], args: Any, out: Any) -> int:
    """Terms of one operator's sums."""
    first = tensors[0]
    if name in ("mm", "bmm", "mv", "dot"):
        return first.shape[-1]
    if name in ("addmm", "baddbmm", "addmv"):
        return tensors[1].shape[-1]
    if "convolution" in name:
        return math.prod(tensors[1].shape[1:])
    if "scaled_dot_product" in name:
        return max(first.shape[-1], tensors[1].shape[-2])
    if name in _ALONG and first.dim():
        return first.shape[int(args[1])] if isinstance(args[1], int) else first.numel()
    if name in _REDUCING | _NORMS:
        smaller = next((t.numel() for t in _tensors(out) if 0 < t.numel() < first.numel()), first.numel())
        return first.numel() // smaller
    return 0


def _tensors(out: Any) -> list[torch.Tensor]:
    """Statistics come last: they are what the sums were."""
    found = list(out) if isinstance(out, (tuple, list)) else [out]
    return [t for t in reversed(found) if isinstance(t, torch.Tensor)]


def _shape_of(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value
