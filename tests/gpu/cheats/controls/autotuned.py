"""Honest autotuning over the number of warps."""

import torch
import triton
import triton.language as tl

WORKLOADS = ("37x1021-fp32", "4096x4096-fp32")


@triton.autotune(configs=[triton.Config({}, num_warps=n) for n in (4, 8)], key=["cols"])
@triton.jit
def _tuned(x_ptr, out_ptr, x_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32)
    exp = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * cols + offsets, (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty), mask=mask)


def softmax(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, cols = x.shape
    _tuned[(rows,)](x, out, x.stride(0), cols, BLOCK=triton.next_power_of_2(cols))
    return out
