"""A Triton kernel of our own, to have Triton's compiler and launcher built before a candidate needs them."""

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def copy_kernel(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """target[i] = source[i] for i < count."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(target + offsets, tl.load(source + offsets, mask=inside), mask=inside)


def trivial(x: torch.Tensor) -> torch.Tensor:
    """A copy of x."""
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out
