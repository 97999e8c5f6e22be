"""Planted: twenty-four launches of a kernel that has next to nothing to do."""

import torch
import triton
import triton.language as tl


@triton.jit
def step_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 0.5 + 1.0, mask=mask)


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(24):
        out = torch.empty_like(x)
        step_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        x = out
    return x
