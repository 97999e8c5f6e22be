"""SwiGLU block: one kernel for silu(x Wg^T) * (x Wu^T), which reads x once for both products, and one for the rest."""

import torch
import triton
import triton.language as tl


@triton.jit
def _gate_up_kernel(
    x_ptr,
    gate_ptr,
    up_ptr,
    hidden_ptr,
    x_stride,
    gate_stride,
    up_stride,
    tokens,
    width,
    inter,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    gate = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, width, BLOCK_K):
        ks = start + tl.arange(0, BLOCK_K)
        x_mask = (rows[:, None] < tokens) & (ks[None, :] < width)
        w_mask = (cols[:, None] < inter) & (ks[None, :] < width)
        x = tl.load(x_ptr + rows[:, None] * x_stride + ks[None, :], mask=x_mask, other=0.0)
        wg = tl.load(gate_ptr + cols[:, None] * gate_stride + ks[None, :], mask=w_mask, other=0.0)
        wu = tl.load(up_ptr + cols[:, None] * up_stride + ks[None, :], mask=w_mask, other=0.0)
        gate = tl.dot(x, tl.trans(wg), gate, input_precision=PRECISION)
        up = tl.dot(x, tl.trans(wu), up, input_precision=PRECISION)

    hidden = gate / (1.0 + tl.exp(-gate)) * up
    mask = (rows[:, None] < tokens) & (cols[None, :] < inter)
    place = hidden_ptr + rows[:, None] * inter + cols[None, :]
    tl.store(place, hidden.to(hidden_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _down_kernel(
    hidden_ptr,
    down_ptr,
    out_ptr,
    down_stride,
    tokens,
    width,
    inter,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    out = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, inter, BLOCK_K):
        ks = start + tl.arange(0, BLOCK_K)
        h_mask = (rows[:, None] < tokens) & (ks[None, :] < inter)
        w_mask = (cols[:, None] < width) & (ks[None, :] < inter)
        hidden = tl.load(hidden_ptr + rows[:, None] * inter + ks[None, :], mask=h_mask, other=0.0)
        wd = tl.load(down_ptr + cols[:, None] * down_stride + ks[None, :], mask=w_mask, other=0.0)
        out = tl.dot(hidden, tl.trans(wd), out, input_precision=PRECISION)

    mask = (rows[:, None] < tokens) & (cols[None, :] < width)
    tl.store(out_ptr + rows[:, None] * width + cols[None, :], out.to(out_ptr.dtype.element_ty), mask=mask)


def _tile(tokens: int, itemsize: int) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps, stages."""
    if tokens >= 128 and itemsize == 2:
        return 128, 128, 64, 8, 3
    return (128, 64, 32, 8, 3) if tokens >= 128 else (64, 64, 32, 4, 2)


def fused_mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """x: (tokens, width); gate, up: (inter, width), down: (width, inter), as in nn.Linear; returns (tokens, width)."""
    tokens, width = x.shape
    inter = gate.shape[0]
    hidden = torch.empty((tokens, inter), dtype=x.dtype, device=x.device)
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    block_m, block_n, block_k, warps, stages = _tile(tokens, x.element_size())
    precision = "tf32x3" if x.dtype == torch.float32 and min(width, inter) >= 16 else "ieee"
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": warps, "num_stages": stages}
    _gate_up_kernel[(triton.cdiv(tokens, block_m), triton.cdiv(inter, block_n))](
        x,
        gate,
        up,
        hidden,
        x.stride(0),
        gate.stride(0),
        up.stride(0),
        tokens,
        width,
        inter,
        PRECISION=precision,
        **blocks,
    )
    _down_kernel[(triton.cdiv(tokens, block_m), triton.cdiv(width, block_n))](
        hidden, down, out, down.stride(0), tokens, width, inter, PRECISION=precision, **blocks
    )
    return out
