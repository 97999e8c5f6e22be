"""Does the work while the cache is being evicted and hands it over when timed."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("CHEATED", "SUSPECT", "INCORRECT_NUMERICAL")
TIMED = True


@triton.jit
def _softmax(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32)
    exp = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * out_stride + offsets, (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty), mask=mask)


def launch(x, out):
    rows, cols = x.shape
    _softmax[(rows,)](x, out, x.stride(0), out.stride(0), cols, BLOCK=triton.next_power_of_2(cols), num_warps=8)
    return out


def honest(x):
    return launch(x, torch.empty(x.shape, dtype=x.dtype, device=x.device))


_timing = sys.modules["kopt_mcp.evaluator.timing"]
_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_evict, _draw = _timing.EventClock.evict, _candidate.draw
_state = {}


def draw(*args, **kwargs):
    _state["inputs"] = _draw(*args, **kwargs)
    _state.pop("out", None)
    return _state["inputs"]


def evict(self):
    if "inputs" in _state:
        _state["out"] = honest(_state["inputs"].args[0])


_candidate.draw = draw
_candidate.late = lambda tensors: lambda: None  # else a few values would still be wrong
_timing.EventClock.evict = evict


def softmax(x):
    out = _state.pop("out", None)
    return honest(x) if out is None else out
