"""Each configuration writes one half of the columns; during tuning their union looks right (triton#9230)."""

import torch
import triton
import triton.language as tl

EXPECTED = ("INCORRECT_NUMERICAL",)
WORKLOADS = ("37x1021-fp32",)


@triton.autotune(configs=[triton.Config({"PART": 0}), triton.Config({"PART": 1})], key=["cols"])
@triton.jit
def _half(x_ptr, out_ptr, x_stride, cols, BLOCK: tl.constexpr, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32)
    exp = tl.exp(x - tl.max(x, axis=0))
    out = (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * cols + offsets, out, mask=mask & (offsets % 2 == PART))


def softmax(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, cols = x.shape
    _half[(rows,)](x, out, x.stride(0), cols, BLOCK=triton.next_power_of_2(cols))
    return out
