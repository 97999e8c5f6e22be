"""Backward of softmax: dx = y * (dy - sum(dy * y)), one program per row."""

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax_backward_kernel(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols

    dy = tl.load(dy_ptr + row * dy_stride + offsets, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(y_ptr + row * y_stride + offsets, mask=mask, other=0.0).to(tl.float32)
    dx = y * (dy - tl.sum(dy * y, axis=0))

    tl.store(dx_ptr + row * dx_stride + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """dy: gradient of the output, y: output of the forward pass, both (rows, cols); returns the input's gradient."""
    rows, cols = y.shape
    dx = torch.empty_like(y)
    _softmax_backward_kernel[(rows,)](
        dy,
        y,
        dx,
        dy.stride(0),
        y.stride(0),
        dx.stride(0),
        cols,
        BLOCK=triton.next_power_of_2(cols),
        num_warps=4,
    )
    return dx
