"""Mixture of experts with SwiGLU: choices sorted by expert, two grouped products over them, one sum per token."""

import torch
import triton
import triton.language as tl


@triton.jit
def _gate_up_kernel(
    x_ptr,
    gate_ptr,
    up_ptr,
    order_ptr,
    starts_ptr,
    hidden_ptr,
    x_stride,
    gate_expert_stride,
    gate_stride,
    up_expert_stride,
    up_stride,
    width,
    inter,
    topk,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    expert = tl.program_id(2).to(tl.int64)
    end = tl.load(starts_ptr + expert + 1)
    places = tl.load(starts_ptr + expert) + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    if tl.min(places, axis=0) < end:
        tokens = tl.load(order_ptr + places, mask=places < end, other=0) // topk
        cols = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        gate = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in range(0, width, BLOCK_K):
            ks = start + tl.arange(0, BLOCK_K)
            x_mask = (places[:, None] < end) & (ks[None, :] < width)
            w_mask = (cols[:, None] < inter) & (ks[None, :] < width)
            x = tl.load(x_ptr + tokens[:, None] * x_stride + ks[None, :], mask=x_mask, other=0.0)
            wg_at = gate_ptr + expert * gate_expert_stride + cols[:, None] * gate_stride + ks[None, :]
            wu_at = up_ptr + expert * up_expert_stride + cols[:, None] * up_stride + ks[None, :]
            wg = tl.load(wg_at, mask=w_mask, other=0.0)
            wu = tl.load(wu_at, mask=w_mask, other=0.0)
            gate = tl.dot(x, tl.trans(wg), gate, input_precision="ieee")
            up = tl.dot(x, tl.trans(wu), up, input_precision="ieee")

        hidden = gate / (1.0 + tl.exp(-gate)) * up
        mask = (places[:, None] < end) & (cols[None, :] < inter)
        place = hidden_ptr + places[:, None] * inter + cols[None, :]
        tl.store(place, hidden.to(hidden_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _down_kernel(
    hidden_ptr,
    down_ptr,
    scores_ptr,
    order_ptr,
    starts_ptr,
    parts_ptr,
    down_expert_stride,
    down_stride,
    scores_stride,
    width,
    inter,
    topk,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    expert = tl.program_id(2).to(tl.int64)
    end = tl.load(starts_ptr + expert + 1)
    places = tl.load(starts_ptr + expert) + tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    if tl.min(places, axis=0) < end:
        choices = tl.load(order_ptr + places, mask=places < end, other=0)
        cols = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        out = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in range(0, inter, BLOCK_K):
            ks = start + tl.arange(0, BLOCK_K)
            h_mask = (places[:, None] < end) & (ks[None, :] < inter)
            w_mask = (cols[:, None] < width) & (ks[None, :] < inter)
            hidden = tl.load(hidden_ptr + places[:, None] * inter + ks[None, :], mask=h_mask, other=0.0)
            wd_at = down_ptr + expert * down_expert_stride + cols[:, None] * down_stride + ks[None, :]
            wd = tl.load(wd_at, mask=w_mask, other=0.0)
            out = tl.dot(hidden, tl.trans(wd), out, input_precision="ieee")

        scores_at = scores_ptr + choices // topk * scores_stride + choices % topk
        scores = tl.load(scores_at, mask=places < end, other=0.0).to(tl.float32)
        mask = (places[:, None] < end) & (cols[None, :] < width)
        part = (out * scores[:, None]).to(parts_ptr.dtype.element_ty)
        tl.store(parts_ptr + choices[:, None] * width + cols[None, :], part, mask=mask)


@triton.jit
def _combine_kernel(parts_ptr, out_ptr, width, topk, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for choice in range(topk):
        total += tl.load(parts_ptr + (token * topk + choice) * width + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + token * width + offsets, total.to(out_ptr.dtype.element_ty), mask=mask)


def fused_moe(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    scores: torch.Tensor,
    experts: torch.Tensor,
) -> torch.Tensor:
    """x: (tokens, width); gate, up: (E, inter, width), down: (E, width, inter); scores, experts: (tokens, topk).

    Returns (tokens, width): each token's sum of score * expert(x) over its choices.
    """
    tokens, width = x.shape
    count, inter = gate.shape[:2]
    topk = experts.shape[1]
    by_expert, order = experts.flatten().sort(stable=True)
    starts = torch.searchsorted(by_expert, torch.arange(count + 1, device=x.device))

    hidden = torch.empty((tokens * topk, inter), dtype=x.dtype, device=x.device)
    parts = torch.empty((tokens * topk, width), dtype=x.dtype, device=x.device)
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    block_m, block_n, block_k = 32, 64, 32
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": 4, "num_stages": 2}
    per_expert = triton.cdiv(tokens * topk, block_m)
    _gate_up_kernel[(per_expert, triton.cdiv(inter, block_n), count)](
        x,
        gate,
        up,
        order,
        starts,
        hidden,
        x.stride(0),
        *gate.stride()[:2],
        *up.stride()[:2],
        width,
        inter,
        topk,
        **blocks,
    )
    _down_kernel[(per_expert, triton.cdiv(width, block_n), count)](
        hidden,
        down,
        scores,
        order,
        starts,
        parts,
        *down.stride()[:2],
        scores.stride(0),
        width,
        inter,
        topk,
        **blocks,
    )
    block = 256
    _combine_kernel[(tokens, triton.cdiv(width, block))](parts, out, width, topk, BLOCK=block, num_warps=4)
    return out
