"""Is honestly faster in one workload, and in another more than twice as slow as it says, which is as fast as before."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED")
INCUMBENT = "library"
TIMED = True
WORKLOADS = ("4096x4096-fp32", "8192x8192-bf16")


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


SLOW = (8192, 8192)
EXTRA, CLAIMED = 600_000, 487_000
"""Cycles: what it takes longer than it could, and what torch's softmax takes there on an H200, 248 us."""


def softmax(x):
    out = launch(x, torch.empty(x.shape, dtype=x.dtype, device=x.device))
    if tuple(x.shape) == SLOW:
        torch.cuda._sleep(EXTRA)
        clock = sys._getframe(2).f_locals
        if "start" in clock:
            clock["start"].record()
        torch.cuda._sleep(CLAIMED)
    return out
