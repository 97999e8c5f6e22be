"""Backward of RMS normalisation: each program takes every PROGRAMS-th row and keeps its share of the column sums."""

import torch
import triton
import triton.language as tl

PROGRAMS = 128


@triton.jit
def _rows_kernel(
    dy_ptr, x_ptr, weight_ptr, dx_ptr, partial_ptr, dy_stride, x_stride, dx_stride, rows, cols, eps, BLOCK: tl.constexpr
):
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    dweight = tl.zeros([BLOCK], dtype=tl.float32)

    for index in range(first, rows, programs):
        row = tl.cast(index, tl.int64)
        dy = tl.load(dy_ptr + row * dy_stride + offsets, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=0.0).to(tl.float32)
        rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / cols + eps)
        normal = x * rstd

        scaled = dy * weight
        along_normal = tl.sum(scaled * normal, axis=0) / cols
        dx = (scaled - normal * along_normal) * rstd
        tl.store(dx_ptr + row * dx_stride + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        dweight += dy * normal

    tl.store(partial_ptr + first * cols + offsets, dweight, mask=mask)


@triton.jit
def _columns_kernel(partial_ptr, dweight_ptr, programs, cols, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < cols
    dweight = tl.zeros([BLOCK], dtype=tl.float32)
    for program in range(programs):
        dweight += tl.load(partial_ptr + program * cols + offsets, mask=mask, other=0.0)
    tl.store(dweight_ptr + offsets, dweight.to(dweight_ptr.dtype.element_ty), mask=mask)


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """dy, x: (rows, cols), weight: (cols,); returns the gradients of x and weight."""
    rows, cols = x.shape
    programs = min(rows, PROGRAMS)
    dx = torch.empty_like(x)
    dweight = torch.empty_like(weight)
    partial = torch.empty((programs, cols), dtype=torch.float32, device=x.device)
    _rows_kernel[(programs,)](
        dy,
        x,
        weight,
        dx,
        partial,
        dy.stride(0),
        x.stride(0),
        dx.stride(0),
        rows,
        cols,
        eps,
        BLOCK=triton.next_power_of_2(cols),
        num_warps=8,
    )
    block = 256
    _columns_kernel[(triton.cdiv(cols, block),)](partial, dweight, programs, cols, BLOCK=block, num_warps=4)
    return dx, dweight
