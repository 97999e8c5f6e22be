"""Sum over the last dimension: blocks added up in float32; long rows are divided, short ones share a program."""

import torch
import triton
import triton.language as tl


@triton.jit
def _reduce_kernel(x_ptr, out_ptr, x_stride, cols, chunk, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * chunk
    end = tl.minimum(first + chunk, cols)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(first, end, BLOCK):
        mask = start + offsets < end
        total += tl.load(x_ptr + row * x_stride + start + offsets, mask=mask, other=0.0).to(tl.float32)
    out = out_ptr + row * tl.num_programs(1) + tl.program_id(1)
    tl.store(out, tl.sum(total, axis=0).to(out_ptr.dtype.element_ty))


@triton.jit
def _short_rows_kernel(x_ptr, out_ptr, x_stride, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = (row[:, None] < rows) & (offsets[None, :] < cols)
    x = tl.load(x_ptr + row[:, None] * x_stride + offsets[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, tl.sum(x, axis=1).to(out_ptr.dtype.element_ty), mask=row < rows)


def _add_up(x: torch.Tensor, out: torch.Tensor, chunk: int) -> None:
    rows, cols = x.shape
    _reduce_kernel[(rows, triton.cdiv(cols, chunk))](x, out, x.stride(0), cols, chunk, BLOCK=1024, num_warps=4)


def reduce(x: torch.Tensor) -> torch.Tensor:
    """x: (rows, cols) with unit stride along cols, any row stride; returns the row sums, (rows,), in x's dtype."""
    rows, cols = x.shape
    out = torch.empty(rows, dtype=x.dtype, device=x.device)
    if cols <= 1024 and rows >= 4096:
        _short_rows_kernel[(triton.cdiv(rows, 4),)](x, out, x.stride(0), rows, cols, ROWS=4, BLOCK=1024, num_warps=4)
        return out
    parts = max(min(triton.cdiv(1056, rows), cols // 16384), 1)
    if parts == 1:
        _add_up(x, out, cols)
    else:
        chunk = triton.cdiv(cols, parts * 1024) * 1024
        sums = torch.empty((rows, triton.cdiv(cols, chunk)), dtype=torch.float32, device=x.device)
        _add_up(x, sums, chunk)
        _add_up(sums, out, sums.shape[1])
    return out
