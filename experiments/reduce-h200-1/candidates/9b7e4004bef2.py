"""Sum over the last dimension: one program per row, which walks the row block by block and adds up in float32."""

import torch
import triton
import triton.language as tl


@triton.jit
def _reduce_kernel(x_ptr, out_ptr, x_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        mask = start + offsets < cols
        total += tl.load(x_ptr + row * x_stride + start + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, tl.sum(total, axis=0).to(out_ptr.dtype.element_ty))


def reduce(x: torch.Tensor) -> torch.Tensor:
    """x: (rows, cols) with unit stride along cols, any row stride; returns the row sums, (rows,), in x's dtype."""
    rows, cols = x.shape
    out = torch.empty(rows, dtype=x.dtype, device=x.device)
    _reduce_kernel[(rows,)](x, out, x.stride(0), cols, BLOCK=1024, num_warps=4)
    return out
