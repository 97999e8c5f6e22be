"""Causal attention with an online softmax: on Hopper one warp loads, and two warp groups attend to 64 queries each."""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

GLUON_TYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


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
    PRECISION: tl.constexpr,
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

        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if MASKED:
            scores = tl.where(keys[None, :] <= queries[:, None], scores, -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(largest - larger)
        total = total * shrink + tl.sum(weights, axis=1)
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
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
    PRECISION: tl.constexpr,
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
        PRECISION=PRECISION,
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
        PRECISION=PRECISION,
        EVEN=EVEN,
        BLOCK_N=BLOCK_N,
    )
    out = out / total[:, None]
    place = out_ptr + (pair * seq + queries[:, None]) * dim + columns[None, :]
    tl.store(place, out.to(out_ptr.dtype.element_ty), mask=q_mask)


@gluon.jit
def _place(tile, pairs, blocks, SECTION: gl.constexpr):
    """(pair of batch and head, block of queries): the longest first, in sections of pairs whose keys fit the L2."""
    section = tile // (SECTION * blocks)
    inside = tile % (SECTION * blocks)
    height = gl.minimum(pairs - section * SECTION, SECTION)
    return section * SECTION + inside % height, blocks - 1 - inside // height


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
    turn = (slot + 1) // STAGES
    return slot + 1 - turn * STAGES, phase ^ turn


@gluon.jit
def _load_blocks(
    q_desc,
    k_desc,
    v_desc,
    q_halves,
    k_tiles,
    v_tiles,
    barriers,
    next_tile,
    counter_ptr,
    pairs,
    group,
    seq,
    SECTION: gl.constexpr,
):
    """The warp that loads: queries, then keys and values from the diagonal backwards."""
    BLOCK: gl.constexpr = k_desc.block_shape[0]
    STAGES: gl.constexpr = k_tiles.shape[0]
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    box, box_full, box_empty = next_tile
    blocks = seq // BLOCK
    slot = 0
    phase = 0
    last_slot = 0
    last_phase = 0
    q_phase = 1
    q_slot = 0
    box_phase = 1
    tile = gl.program_id(0)
    while tile < pairs * blocks:
        pair, block = _place(tile, pairs, blocks, SECTION)
        mbarrier.wait(box_empty, box_phase)
        box_phase = box_phase ^ 1
        tile = gl.atomic_add(counter_ptr, 1)
        box.store(gl.full([1], tile, gl.int32, gl.BlockedLayout([1], [32], [1], [0])))
        mbarrier.arrive(box_full)

        first = pair * seq + block * BLOCK
        q_ready = q_full.index(q_slot)
        mbarrier.wait(q_empty.index(q_slot), q_phase)
        mbarrier.expect(q_ready, 2 * q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [first, 0], q_ready, q_halves.index(2 * q_slot))
        tma.async_copy_global_to_shared(q_desc, [first + BLOCK // 2, 0], q_ready, q_halves.index(2 * q_slot + 1))
        keys = pair // group * seq
        for back in range(block + 1):
            at = keys + (block - back) * BLOCK
            mbarrier.wait(k_empty.index(slot), phase ^ 1)
            mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(k_desc, [at, 0], k_full.index(slot), k_tiles.index(slot))
            if back > 0:
                full = v_full.index(last_slot)
                mbarrier.wait(v_empty.index(last_slot), last_phase ^ 1)
                mbarrier.expect(full, v_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(v_desc, [at + BLOCK, 0], full, v_tiles.index(last_slot))
            last_slot = slot
            last_phase = phase
            slot, phase = _next(slot, phase, STAGES)
        full = v_full.index(last_slot)
        mbarrier.wait(v_empty.index(last_slot), last_phase ^ 1)
        mbarrier.expect(full, v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, [keys, 0], full, v_tiles.index(last_slot))
        q_slot, q_phase = _next(q_slot, q_phase, 2)


@gluon.jit
def _attend_half(
    out_desc,
    q_halves,
    k_tiles,
    v_tiles,
    barriers,
    next_tile,
    pairs,
    seq,
    scale,
    SECTION: gl.constexpr,
    HALF: gl.constexpr,
):
    """A warp group and its half of the block's queries; scores of the next keys run beside this one's output."""
    BLOCK: gl.constexpr = k_tiles.shape[1]
    DIM: gl.constexpr = k_tiles.shape[2]
    STAGES: gl.constexpr = k_tiles.shape[0]
    dtype: gl.constexpr = out_desc.dtype
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    weights_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    box, box_full, box_empty = next_tile
    blocks = seq // BLOCK
    slot = 0
    phase = 0
    q_phase = 0
    q_slot = 0
    box_phase = 0
    nothing = gl.zeros([BLOCK // 2, BLOCK], gl.float32, scores_layout)
    tile = gl.program_id(0)
    while tile < pairs * blocks:
        pair, block = _place(tile, pairs, blocks, SECTION)
        mbarrier.wait(box_full, box_phase)
        box_phase = box_phase ^ 1
        tile = gl.max(box.load(gl.BlockedLayout([1], [32], [4], [0])), axis=0)
        mbarrier.arrive(box_empty)

        q_half = q_halves.index(2 * q_slot + HALF)
        mbarrier.wait(q_full.index(q_slot), q_phase)
        mbarrier.wait(k_full.index(slot), phase)
        scores = warpgroup_mma(q_half, k_tiles.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        mbarrier.arrive(k_empty.index(slot))
        queries = HALF * (BLOCK // 2) + gl.arange(0, BLOCK // 2, gl.SliceLayout(1, scores_layout))
        keys = gl.arange(0, BLOCK, gl.SliceLayout(0, scores_layout))
        scores = gl.where(keys[None, :] <= queries[:, None], scores, -float("inf"))
        largest = gl.max(scores, axis=1) * scale
        weights = gl.exp2(scores * scale - largest[:, None])
        total = gl.sum(weights, axis=1)
        packed = gl.convert_layout(weights.to(dtype), weights_layout)
        out = gl.zeros([BLOCK // 2, DIM], gl.float32, out_layout)
        for _ in range(block):
            last_slot = slot
            last_phase = phase
            slot, phase = _next(slot, phase, STAGES)
            mbarrier.wait(k_full.index(slot), phase)
            scores = warpgroup_mma(q_half, k_tiles.index(slot).permute((1, 0)), nothing, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(last_slot), last_phase)
            out = warpgroup_mma(packed, v_tiles.index(last_slot), out, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[scores])
            mbarrier.arrive(k_empty.index(slot))
            larger = gl.maximum(largest, gl.max(scores, axis=1) * scale)
            weights = gl.exp2(scores * scale - larger[:, None])
            shrink = gl.exp2(largest - larger)
            total = total * shrink + gl.sum(weights, axis=1)
            largest = larger
            out, packed = warpgroup_mma_wait(0, deps=[out, packed])
            mbarrier.arrive(v_empty.index(last_slot))
            out = out * gl.convert_layout(shrink, gl.SliceLayout(1, out_layout))[:, None]
            packed = gl.convert_layout(weights.to(dtype), weights_layout)
        mbarrier.wait(v_full.index(slot), phase)
        out = warpgroup_mma(packed, v_tiles.index(slot), out, is_async=True)
        out = warpgroup_mma_wait(0, deps=[out])
        mbarrier.arrive(v_empty.index(slot))
        slot, phase = _next(slot, phase, STAGES)

        out = out / gl.convert_layout(total, gl.SliceLayout(1, out_layout))[:, None]
        q_half.store(out.to(dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [pair * seq + block * BLOCK + HALF * (BLOCK // 2), 0], q_half)
        tma.store_wait(0)
        mbarrier.arrive(q_empty.index(q_slot))
        q_slot, q_phase = _next(q_slot, q_phase, 2)


@gluon.jit
def _attention_ws_kernel(
    q_desc,
    k_desc,
    v_desc,
    out_desc,
    counter_ptr,
    pairs,
    group,
    seq,
    scale,
    STAGES: gl.constexpr,
    SECTION: gl.constexpr,
):
    BLOCK: gl.constexpr = k_desc.block_shape[0]
    DIM: gl.constexpr = k_desc.block_shape[1]
    dtype: gl.constexpr = q_desc.dtype
    q_halves = gl.allocate_shared_memory(dtype, [4, BLOCK // 2, DIM], q_desc.layout)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, DIM], k_desc.layout)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, DIM], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(2):
        mbarrier.init(q_full.index(slot), count=1)
        mbarrier.init(q_empty.index(slot), count=2)
    for slot in gl.static_range(STAGES):
        mbarrier.init(k_full.index(slot), count=1)
        mbarrier.init(k_empty.index(slot), count=2)
        mbarrier.init(v_full.index(slot), count=1)
        mbarrier.init(v_empty.index(slot), count=2)
    box = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    box_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    box_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(box_full, count=1)
    mbarrier.init(box_empty, count=2)
    fence_async_shared()
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty)
    next_tile = (box, box_full, box_empty)
    gl.warp_specialize(
        [
            (
                _attend_half,
                (
                    out_desc,
                    q_halves,
                    k_tiles,
                    v_tiles,
                    barriers,
                    next_tile,
                    pairs,
                    seq,
                    scale,
                    SECTION,
                    0,
                ),
            ),
            (
                _attend_half,
                (
                    out_desc,
                    q_halves,
                    k_tiles,
                    v_tiles,
                    barriers,
                    next_tile,
                    pairs,
                    seq,
                    scale,
                    SECTION,
                    1,
                ),
            ),
            (
                _load_blocks,
                (
                    q_desc,
                    k_desc,
                    v_desc,
                    q_halves,
                    k_tiles,
                    v_tiles,
                    barriers,
                    next_tile,
                    counter_ptr,
                    pairs,
                    group,
                    seq,
                    SECTION,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )


def _descriptor(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    flat = tensor.reshape(-1, tensor.shape[-1])
    layout = gl.NVMMASharedLayout.get_default_for([rows, flat.shape[1]], GLUON_TYPES[tensor.dtype])
    return TensorDescriptor.from_tensor(flat, [rows, flat.shape[1]], layout)


def _has_hopper(device: torch.device) -> bool:
    if not triton.__version__.startswith("3.6."):  # Gluon's names change with the version
        return False
    return device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device)[0] == 9


def _is_flat(tensor: torch.Tensor) -> bool:
    """Whether all rows of all heads are one tall matrix, each row at a multiple of 16 bytes."""
    rows = tensor.stride(2)
    tall = tensor.stride(1) == tensor.shape[2] * rows and tensor.stride(0) == tensor.shape[1] * tensor.stride(1)
    return tall and rows * tensor.element_size() % 16 == 0 and tensor.data_ptr() % 16 == 0


def _attention_specialised(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    batch, heads, seq, dim = q.shape
    tiles = batch * heads * (seq // 128)
    grid = min(tiles, torch.cuda.get_device_properties(q.device).multi_processor_count)
    _attention_ws_kernel[(grid,)](
        _descriptor(q, 64),
        _descriptor(k, 128),
        _descriptor(v, 128),
        _descriptor(out, 64),
        torch.full((1,), grid, dtype=torch.int32, device=q.device),
        batch * heads,
        heads // k.shape[1],
        seq,
        dim**-0.5 * 1.4426950408889634,
        STAGES=2,
        SECTION=16,
        num_warps=4,
    )


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q: (batch, heads, seq, dim), k, v: (batch, kv_heads, seq, dim), unit stride along dim; returns a tensor like q.

    Causal, scores scaled by dim ** -0.5; heads is a multiple of kv_heads, and each group of queries shares one kv head.
    """
    batch, heads, seq, dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    whole = seq % 128 == 0 and dim in (64, 128) and q.element_size() == 2
    if whole and _has_hopper(q.device) and all(map(_is_flat, (q, k, v))):
        _attention_specialised(q, k, v, out)
        return out
    width = max(16, triton.next_power_of_2(dim))
    block_m, block_n = (128, 64) if q.element_size() == 2 else (64, 64)
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
        PRECISION="tf32x3" if q.dtype == torch.float32 else "ieee",
        EVEN=seq % block_m == 0 and dim == width,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=width,
        num_warps=8 if block_m == 128 else 4,
        num_stages=3 if block_m == 128 else 2,
    )
    return out
