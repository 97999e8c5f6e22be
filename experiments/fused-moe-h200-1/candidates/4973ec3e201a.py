"""Mixture of experts with SwiGLU: choices placed by expert, two grouped products over them, one sum per token."""

import torch
import triton
import triton.language as tl


@triton.jit
def _place_kernel(
    experts_ptr,
    choice_ptr,
    place_ptr,
    owner_ptr,
    used_ptr,
    experts_stride,
    count,
    topk,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Where one expert's choices go: whole blocks of ROWS rows, after those of earlier experts."""
    expert = tl.program_id(0)
    bins = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], dtype=tl.int32)
    for start in range(0, count, BLOCK):
        choice = start + tl.arange(0, BLOCK)
        inside = choice < count
        at = experts_ptr + choice // topk * experts_stride + choice % topk
        chosen = tl.load(at, mask=inside, other=0).to(tl.int32)
        counts += tl.histogram(chosen, EXPERTS, mask=inside)
    blocks = (counts + ROWS - 1) // ROWS
    first = tl.sum(tl.where(bins < expert, blocks, 0))
    many = tl.sum(tl.where(bins == expert, blocks, 0))
    for block in range(first, first + many):
        tl.store(owner_ptr + block, expert)
    if expert == 0:
        tl.store(used_ptr, tl.sum(blocks))

    place = first * ROWS
    for start in range(0, count, BLOCK):
        choice = start + tl.arange(0, BLOCK)
        inside = choice < count
        at = experts_ptr + choice // topk * experts_stride + choice % topk
        mine = inside & (tl.load(at, mask=inside, other=-1).to(tl.int32) == expert)
        places = place + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(choice_ptr + places, choice, mask=mine)
        tl.store(place_ptr + choice, places, mask=mine)
        place += tl.sum(mine.to(tl.int32))
    rest = place + tl.arange(0, ROWS)
    tl.store(choice_ptr + rest, rest * 0 - 1, mask=rest < (first + many) * ROWS)


@triton.jit
def _gate_up_kernel(
    x_ptr,
    gate_ptr,
    up_ptr,
    choice_ptr,
    owner_ptr,
    used_ptr,
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
    block = tl.program_id(0)
    if block < tl.load(used_ptr):
        expert = tl.load(owner_ptr + block).to(tl.int64)
        places = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        choices = tl.load(choice_ptr + places)
        filled = choices >= 0
        tokens = (tl.maximum(choices, 0) // topk).to(tl.int64)
        cols = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        gate = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in range(0, width, BLOCK_K):
            ks = start + tl.arange(0, BLOCK_K)
            x_mask = filled[:, None] & (ks[None, :] < width)
            w_mask = (cols[:, None] < inter) & (ks[None, :] < width)
            x = tl.load(x_ptr + tokens[:, None] * x_stride + ks[None, :], mask=x_mask, other=0.0)
            wg_at = gate_ptr + expert * gate_expert_stride + cols[:, None] * gate_stride + ks[None, :]
            wu_at = up_ptr + expert * up_expert_stride + cols[:, None] * up_stride + ks[None, :]
            wg = tl.load(wg_at, mask=w_mask, other=0.0)
            wu = tl.load(wu_at, mask=w_mask, other=0.0)
            gate = tl.dot(x, tl.trans(wg), gate, input_precision="ieee")
            up = tl.dot(x, tl.trans(wu), up, input_precision="ieee")

        hidden = gate / (1.0 + tl.exp(-gate)) * up
        mask = filled[:, None] & (cols[None, :] < inter)
        place = hidden_ptr + places[:, None] * inter + cols[None, :]
        tl.store(place, hidden.to(hidden_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _down_kernel(
    hidden_ptr,
    down_ptr,
    choice_ptr,
    owner_ptr,
    used_ptr,
    parts_ptr,
    down_expert_stride,
    down_stride,
    width,
    inter,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    block = tl.program_id(0)
    if block < tl.load(used_ptr):
        expert = tl.load(owner_ptr + block).to(tl.int64)
        places = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        filled = tl.load(choice_ptr + places) >= 0
        cols = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        out = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in range(0, inter, BLOCK_K):
            ks = start + tl.arange(0, BLOCK_K)
            h_mask = filled[:, None] & (ks[None, :] < inter)
            w_mask = (cols[:, None] < width) & (ks[None, :] < inter)
            hidden = tl.load(hidden_ptr + places[:, None] * inter + ks[None, :], mask=h_mask, other=0.0)
            wd_at = down_ptr + expert * down_expert_stride + cols[:, None] * down_stride + ks[None, :]
            wd = tl.load(wd_at, mask=w_mask, other=0.0)
            out = tl.dot(hidden, tl.trans(wd), out, input_precision="ieee")

        mask = filled[:, None] & (cols[None, :] < width)
        tl.store(parts_ptr + places[:, None] * width + cols[None, :], out.to(parts_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _combine_kernel(parts_ptr, scores_ptr, place_ptr, out_ptr, scores_stride, width, topk, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for slot in range(topk):
        place = tl.load(place_ptr + token * topk + slot).to(tl.int64)
        score = tl.load(scores_ptr + token * scores_stride + slot).to(tl.float32)
        total += score * tl.load(parts_ptr + place * width + offsets, mask=mask, other=0.0).to(tl.float32)
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
    block_m, block_n, block_k = 32, 64, 32
    choices = tokens * topk
    most = min(choices, triton.cdiv(choices, block_m) + count)  # blocks of rows, were the choices spread at their worst
    choice, place, owner, used = (
        torch.empty(size, dtype=torch.int32, device=x.device) for size in (most * block_m, choices, most, 1)
    )
    _place_kernel[(count,)](
        experts,
        choice,
        place,
        owner,
        used,
        experts.stride(0),
        choices,
        topk,
        EXPERTS=triton.next_power_of_2(max(count, 2)),
        ROWS=block_m,
        BLOCK=min(8192, max(128, triton.next_power_of_2(choices))),
        num_warps=16 if choices > 2048 else 4,
    )

    hidden = torch.empty((most * block_m, inter), dtype=x.dtype, device=x.device)
    parts = torch.empty((most * block_m, width), dtype=x.dtype, device=x.device)
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": 4, "num_stages": 2}
    _gate_up_kernel[(most, triton.cdiv(inter, block_n))](
        x,
        gate,
        up,
        choice,
        owner,
        used,
        hidden,
        x.stride(0),
        *gate.stride()[:2],
        *up.stride()[:2],
        width,
        inter,
        topk,
        **blocks,
    )
    _down_kernel[(most, triton.cdiv(width, block_n))](
        hidden, down, choice, owner, used, parts, *down.stride()[:2], width, inter, **blocks
    )
    block = 1024
    _combine_kernel[(tokens, triton.cdiv(width, block))](
        parts, scores, place, out, scores.stride(0), width, topk, BLOCK=block, num_warps=4
    )
    return out
