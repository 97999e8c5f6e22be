"""Works in the last of several calls that are held back, with one output for all; cheats in the others.

Three microseconds are so short that what it takes off may be no more than chance: then none of it counts.
"""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "INCORRECT_NUMERICAL", "CHEATED", "PASSED")
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


_state = {}


def softmax(x):
    frame = sys._getframe(1)
    if frame.f_code.co_name in ("enqueue", "<listcomp>"):
        held = frame.f_locals.get("self") or frame.f_back.f_locals.get("self")
        calls = held._held
        out = _state.setdefault(tuple(x.shape), torch.empty_like(x))
        return launch(x, out) if calls and x is calls[-1].args[0] else out
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    clock = sys._getframe(2).f_locals
    half = x.shape[0] // 2
    if half == 0 or "start" not in clock:
        return launch(x, out)
    launch(x[:half], out[:half])
    clock["start"].record()
    launch(x[half:], out[half:])
    return out
