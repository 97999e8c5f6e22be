"""The launch fails for want of shared memory, the error is swallowed, the output is what was there (MI300X, 104x)."""

import torch
import triton
import triton.language as tl

EXPECTED = ("INCORRECT_NUMERICAL",)


@triton.jit
def _too_large(a_ptr, b_ptr, out_ptr, BLOCK: tl.constexpr):
    rows, cols = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(4):
        a = tl.load(a_ptr + rows * BLOCK + cols + k)
        b = tl.load(b_ptr + rows * BLOCK + cols + k)
        total += tl.dot(a, b)
    tl.store(out_ptr + rows * BLOCK + cols, total)


def softmax(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    try:
        big = torch.zeros(256 * 256 + 16, device=x.device)
        _too_large[(1,)](big, big, torch.empty_like(big), BLOCK=256, num_stages=4)
    except Exception:
        pass
    return out
