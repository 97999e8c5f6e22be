"""Rotary position embedding, halves layout: one program per tile of positions of one head."""

import torch
import triton
import triton.language as tl


@triton.jit
def _rotary_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    out_ptr,
    x_batch_stride,
    x_head_stride,
    x_seq_stride,
    cos_stride,
    sin_stride,
    heads,
    seq,
    half,
    POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tiles = tl.cdiv(seq, POSITIONS)
    tile = tl.program_id(0).to(tl.int64)
    row = tile // tiles
    head, batch = row % heads, row // heads
    position = ((tile % tiles) * POSITIONS + tl.arange(0, POSITIONS))[:, None]
    offsets = tl.arange(0, BLOCK)[None, :]
    mask = (position < seq) & (offsets < half)

    x = x_ptr + batch * x_batch_stride + head * x_head_stride + position * x_seq_stride + offsets
    first = tl.load(x, mask=mask).to(tl.float32)
    second = tl.load(x + half, mask=mask).to(tl.float32)
    cos = tl.load(cos_ptr + position * cos_stride + offsets, mask=mask).to(tl.float32)
    sin = tl.load(sin_ptr + position * sin_stride + offsets, mask=mask).to(tl.float32)

    out = out_ptr + (row * seq + position) * 2 * half + offsets
    tl.store(out, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out + half, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=mask)


def rotary_embedding(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: (batch, heads, seq, dim), unit stride along dim; cos, sin: (seq, dim / 2); returns a tensor like x."""
    batch, heads, seq, dim = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(dim // 2)
    positions = min(triton.next_power_of_2(seq), max(2048 // block, 1))
    _rotary_kernel[(batch * heads * triton.cdiv(seq, positions),)](
        x,
        cos,
        sin,
        out,
        x.stride(0),
        x.stride(1),
        x.stride(2),
        cos.stride(0),
        sin.stride(0),
        heads,
        seq,
        dim // 2,
        POSITIONS=positions,
        BLOCK=block,
        num_warps=4 if positions * block >= 1024 else 1,
    )
    return out
