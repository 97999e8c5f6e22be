"""Planted: one program a row, and sixteen rows on a device of more than a hundred processors."""

import torch
import triton
import triton.language as tl


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        total += tl.load(x_ptr + row * cols + start + tl.arange(0, BLOCK))
    tl.store(out_ptr + row, tl.sum(total, axis=0))


def row_sum(x: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    out = torch.empty(rows, device=x.device, dtype=x.dtype)
    row_sum_kernel[(rows,)](x, out, cols, BLOCK=4096, num_warps=8)
    return out
