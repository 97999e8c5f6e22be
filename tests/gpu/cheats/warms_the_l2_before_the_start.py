"""Reads its input before the start event is recorded."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("CHEATED", "SUSPECT")
TIMED = True
WORKLOADS = ("128x1024-bf16",)


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
    return _state["inputs"]


def evict(self):
    _evict(self)
    if "inputs" in _state:
        _state["inputs"].args[0].sum()


_candidate.draw = draw
_timing.EventClock.evict = evict

softmax = honest
