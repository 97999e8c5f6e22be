"""A softmax to be made faster: three passes over each row, a narrow block, one warp. Right, and slow."""

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    out_row = out_ptr + row * out_stride

    largest = -float("inf")
    for start in range(0, cols, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + offsets, mask=offsets < cols, other=-float("inf")).to(tl.float32)
        largest = tl.maximum(largest, tl.max(x, axis=0))

    total = 0.0
    for start in range(0, cols, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + offsets, mask=offsets < cols, other=-float("inf")).to(tl.float32)
        total += tl.sum(tl.exp(x - largest), axis=0)

    for start in range(0, cols, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + offsets, mask=offsets < cols, other=-float("inf")).to(tl.float32)
        out = tl.exp(x - largest) / total
        tl.store(out_row + offsets, out.to(out_ptr.dtype.element_ty), mask=offsets < cols)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """x: (rows, cols) with unit stride along cols; returns a new tensor of the same shape and dtype."""
    rows, cols = x.shape
    out = torch.empty_like(x)
    _softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), cols, BLOCK=256, num_warps=1)
    return out
