"""Claims a microsecond that it has not gained in each of three workloads: too little to be suspected in any of them."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("CHEATED", "SUSPECT", "PASSED")
TIMED = True
WORKLOADS = ("4096x4096-fp32", "8192x8192-bf16", "8192x8192-fp16")


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


CYCLES = {(4096, 4096): 56_000, (8192, 8192): 120_600}
"""For which the device spins instead: a microsecond and some less than the work takes on an H200."""


def softmax(x):
    out = honest(x)
    clock = sys._getframe(2).f_locals
    if tuple(x.shape) in CYCLES and "start" in clock:
        clock["start"].record()
        torch.cuda._sleep(CYCLES[tuple(x.shape)])
    return out
