"""A copy that takes a chosen number of dependent multiply-adds per element: kernels of a known relative cost."""

import torch
import triton
import triton.language as tl

STEPS = 2000


@triton.jit
def _chain_kernel(x_ptr, out_ptr, one, zero, count, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offsets, mask=offsets < count)
    for _ in range(STEPS):
        value = value * one + zero  # the compiler cannot know that this changes nothing
    tl.store(out_ptr + offsets, value, mask=offsets < count)


def chain(x: torch.Tensor) -> torch.Tensor:
    """x: (count,); a copy of it."""
    out = torch.empty_like(x)
    _chain_kernel[(triton.cdiv(x.numel(), 256),)](x, out, 1.0, 0.0, x.numel(), STEPS=STEPS, BLOCK=256, num_warps=4)
    return out
