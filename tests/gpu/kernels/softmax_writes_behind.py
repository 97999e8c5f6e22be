"""A right softmax that also writes one element behind its output, where the caching allocator keeps room."""

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, cols, behind, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32)
    exp = tl.exp(x - tl.max(x, axis=0))
    out = exp / tl.sum(exp, axis=0)
    tl.store(out_ptr + row * out_stride + offsets, out.to(out_ptr.dtype.element_ty), mask=mask)
    if behind:
        tl.store(out_ptr + tl.num_programs(0) * out_stride, 0.0)  # PLANTED


def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    out = torch.empty_like(x)
    room = out.numel() * out.element_size() % 512 != 0  # the allocator rounds up: nothing else lies there
    _softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), cols, room, BLOCK=triton.next_power_of_2(cols))
    return out
