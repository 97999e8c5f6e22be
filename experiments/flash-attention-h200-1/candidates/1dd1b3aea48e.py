"""Causal attention with an online softmax: one program per 64 queries of one head; scores never leave the chip."""

import torch
import triton
import triton.language as tl


@triton.jit
def _attend(
    out,
    largest,
    total,
    q,
    k_base,
    v_base,
    k_seq_stride,
    v_seq_stride,
    queries,
    columns,
    low,
    high,
    seq,
    dim,
    scale,
    MASKED: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The keys from `low` to below `high`; only where MASKED may some of them lie after a query."""
    for start in range(low, high, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k_at = k_base + keys[:, None].to(tl.int64) * k_seq_stride + columns[None, :]
        v_at = v_base + keys[:, None].to(tl.int64) * v_seq_stride + columns[None, :]
        if EVEN:
            k = tl.load(k_at)
            v = tl.load(v_at)
        else:
            mask = (keys[:, None] < seq) & (columns[None, :] < dim)
            k = tl.load(k_at, mask=mask, other=0.0)
            v = tl.load(v_at, mask=mask, other=0.0)

        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if MASKED:
            scores = tl.where(keys[None, :] <= queries[:, None], scores, -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(largest - larger)
        total = total * shrink + tl.sum(weights, axis=1)
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
        largest = larger
    return out, largest, total


@triton.jit
def _flash_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    q_batch_stride,
    q_head_stride,
    q_seq_stride,
    k_batch_stride,
    k_head_stride,
    k_seq_stride,
    v_batch_stride,
    v_head_stride,
    v_seq_stride,
    heads,
    group,
    seq,
    dim,
    scale,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    pair = tl.program_id(0).to(tl.int64)
    batch = pair // heads
    head = pair % heads
    queries = block * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    q_mask = (queries[:, None] < seq) & (columns[None, :] < dim)

    q_base = q_ptr + batch * q_batch_stride + head * q_head_stride
    k_base = k_ptr + batch * k_batch_stride + (head // group) * k_head_stride
    v_base = v_ptr + batch * v_batch_stride + (head // group) * v_head_stride
    q = tl.load(q_base + queries[:, None].to(tl.int64) * q_seq_stride + columns[None, :], mask=q_mask, other=0.0)

    largest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    diagonal = block * BLOCK_M
    out, largest, total = _attend(
        out,
        largest,
        total,
        q,
        k_base,
        v_base,
        k_seq_stride,
        v_seq_stride,
        queries,
        columns,
        0,
        diagonal,
        seq,
        dim,
        scale,
        MASKED=False,
        EVEN=EVEN,
        BLOCK_N=BLOCK_N,
    )
    out, largest, total = _attend(
        out,
        largest,
        total,
        q,
        k_base,
        v_base,
        k_seq_stride,
        v_seq_stride,
        queries,
        columns,
        diagonal,
        tl.minimum(diagonal + BLOCK_M, seq),
        seq,
        dim,
        scale,
        MASKED=True,
        EVEN=EVEN,
        BLOCK_N=BLOCK_N,
    )
    out = out / total[:, None]
    place = out_ptr + (pair * seq + queries[:, None]) * dim + columns[None, :]
    tl.store(place, out.to(out_ptr.dtype.element_ty), mask=q_mask)


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q: (batch, heads, seq, dim), k, v: (batch, kv_heads, seq, dim), unit stride along dim; returns a tensor like q.

    Causal, scores scaled by dim ** -0.5; heads is a multiple of kv_heads, and each group of queries shares one kv head.
    """
    batch, heads, seq, dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    width = max(16, triton.next_power_of_2(dim))
    block_m, block_n = (128, 64) if q.element_size() == 2 else (64, 32)
    _flash_attention_kernel[(batch * heads, triton.cdiv(seq, block_m))](
        q,
        k,
        v,
        out,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        heads,
        heads // k.shape[1],
        seq,
        dim,
        dim**-0.5 * 1.4426950408889634,
        EVEN=seq % block_m == 0 and dim == width,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=width,
        num_warps=8 if block_m == 128 else 4,
        num_stages=3 if block_m == 128 else 2,
    )
    return out
