"""Mixture of experts with SwiGLU: choices placed by expert, two grouped products over them, one sum per token.

On Hopper, where experts get many rows, one warp of a product loads and two warp groups multiply.
"""

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
        cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        kept = (cols % inter).to(tl.int64)  # columns beyond are computed from others, and never stored
        ks = tl.arange(0, BLOCK_K)
        x_at = x_ptr + tokens[:, None] * x_stride + ks[None, :]
        gate_at = gate_ptr + expert * gate_expert_stride + kept[:, None] * gate_stride + ks[None, :]
        up_at = up_ptr + expert * up_expert_stride + kept[:, None] * up_stride + ks[None, :]
        gate = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in range(0, width, BLOCK_K):
            k_mask = (start + ks < width)[None, :]
            x = tl.load(x_at, mask=k_mask, other=0.0)
            wg = tl.load(gate_at, mask=k_mask, other=0.0)
            wu = tl.load(up_at, mask=k_mask, other=0.0)
            x_at += BLOCK_K
            gate_at += BLOCK_K
            up_at += BLOCK_K
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
        cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        kept = (cols % width).to(tl.int64)
        ks = tl.arange(0, BLOCK_K)
        hidden_at = hidden_ptr + places[:, None] * inter + ks[None, :]
        down_at = down_ptr + expert * down_expert_stride + kept[:, None] * down_stride + ks[None, :]
        out = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in range(0, inter, BLOCK_K):
            k_mask = (start + ks < inter)[None, :]
            hidden = tl.load(hidden_at, mask=filled[:, None] & k_mask, other=0.0)
            wd = tl.load(down_at, mask=k_mask, other=0.0)
            hidden_at += BLOCK_K
            down_at += BLOCK_K
            out = tl.dot(hidden, tl.trans(wd), out, input_precision="ieee")

        mask = filled[:, None] & (cols[None, :] < width)
        tl.store(parts_ptr + places[:, None] * width + cols[None, :], out.to(parts_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gather_kernel(x_ptr, place_ptr, sorted_ptr, x_stride, width, topk, BLOCK: tl.constexpr):
    choice = tl.program_id(0)
    place = tl.load(place_ptr + choice).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < width
    row = tl.load(x_ptr + (choice // topk).to(tl.int64) * x_stride + offsets, mask=mask)
    tl.store(sorted_ptr + place * width + offsets, row, mask=mask)


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


@gluon.jit
def _place(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    group = tile // (GROUP * tiles_n)
    inside = tile % (GROUP * tiles_n)
    height = gl.minimum(tiles_m - group * GROUP, GROUP)
    return group * GROUP + inside % height, inside // height


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
    turn = (slot + 1) // STAGES
    return slot + 1 - turn * STAGES, phase ^ turn


@gluon.jit
def _load_tiles(
    x_desc,
    left_desc,
    right_desc,
    x_tiles,
    w_halves,
    ready,
    empty,
    owner_ptr,
    used_ptr,
    cols,
    k,
    GROUP: gl.constexpr,
    GATED: gl.constexpr,
):
    BLOCK_K: gl.constexpr = x_desc.block_shape[1]
    HALF_N: gl.constexpr = left_desc.block_shape[0]
    STEP: gl.constexpr = HALF_N if GATED else 2 * HALF_N
    AHEAD: gl.constexpr = 0 if GATED else HALF_N
    STAGES: gl.constexpr = x_tiles.shape[0]
    tiles_m = gl.load(used_ptr)
    tiles_n = gl.cdiv(cols, STEP)
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, col = _place(tile, tiles_m, tiles_n, GROUP)
        at = gl.load(owner_ptr + row) * cols + col * STEP
        for start in range(0, k, BLOCK_K):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            full = ready.index(slot)
            mbarrier.expect(full, x_desc.block_type.nbytes + 2 * left_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(x_desc, [row * 128, start], full, x_tiles.index(slot))
            tma.async_copy_global_to_shared(left_desc, [at, start], full, w_halves.index(2 * slot))
            tma.async_copy_global_to_shared(right_desc, [at + AHEAD, start], full, w_halves.index(2 * slot + 1))
            slot, phase = _next(slot, phase, STAGES)


@gluon.jit
def _multiply(
    out_desc,
    x_halves,
    w_tiles,
    out_tile,
    ready,
    empty,
    used_ptr,
    cols,
    k,
    GROUP: gl.constexpr,
    GATED: gl.constexpr,
    HALF: gl.constexpr,
):
    STAGES: gl.constexpr = w_tiles.shape[0]
    BLOCK_N: gl.constexpr = w_tiles.shape[1]
    BLOCK_K: gl.constexpr = w_tiles.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    tiles_m = gl.load(used_ptr)
    tiles_n = gl.cdiv(cols, BLOCK_N // 2 if GATED else BLOCK_N)
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, col = _place(tile, tiles_m, tiles_n, GROUP)
        total = gl.zeros([64, BLOCK_N], gl.float32, layout)
        before = 0  # not slot itself: a loop of Triton 3.6 takes two names of one value for one
        for start in range(0, k, BLOCK_K):
            mbarrier.wait(ready.index(slot), phase)
            x = x_halves.index(2 * slot + HALF)
            total = warpgroup_mma(x, w_tiles.index(slot).permute((1, 0)), total, is_async=True)
            total = warpgroup_mma_wait(1, deps=[total])
            mbarrier.arrive(empty.index(before), pred=start > 0)
            before = slot
            slot, phase = _next(slot, phase, STAGES)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(empty.index(before))
        at = row * 128 + HALF * 64
        if GATED:
            gate, up = total.reshape([64, 2, BLOCK_N // 2]).permute(0, 2, 1).split()
            result = gate / (1.0 + gl.exp2(gate * -1.4426950408889634)) * up
        else:
            result = total
        tma.store_wait(0)  # of the tile before
        out_tile.store(result.to(out_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [at, col * out_tile.shape[1]], out_tile)
    tma.store_wait(0)


@gluon.jit
def _product_ws_kernel(
    x_desc,
    left_desc,
    right_desc,
    out_desc,
    owner_ptr,
    used_ptr,
    cols,
    k,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    GATED: gl.constexpr,
):
    BLOCK_K: gl.constexpr = x_desc.block_shape[1]
    HALF_N: gl.constexpr = left_desc.block_shape[0]
    dtype: gl.constexpr = x_desc.dtype
    x_tiles = gl.allocate_shared_memory(dtype, [STAGES, 128, BLOCK_K], x_desc.layout)
    w_tiles = gl.allocate_shared_memory(dtype, [STAGES, 2 * HALF_N, BLOCK_K], left_desc.layout)
    out_tiles = gl.allocate_shared_memory(dtype, [2, 64, out_desc.block_shape[1]], out_desc.layout)
    x_halves = x_tiles._reinterpret(dtype, [2 * STAGES, 64, BLOCK_K], x_desc.layout)
    w_halves = w_tiles._reinterpret(dtype, [2 * STAGES, HALF_N, BLOCK_K], left_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _multiply,
                (out_desc, x_halves, w_tiles, out_tiles.index(0), ready, empty, used_ptr, cols, k, GROUP, GATED, 0),
            ),
            (
                _multiply,
                (out_desc, x_halves, w_tiles, out_tiles.index(1), ready, empty, used_ptr, cols, k, GROUP, GATED, 1),
            ),
            (
                _load_tiles,
                (
                    x_desc,
                    left_desc,
                    right_desc,
                    x_tiles,
                    w_halves,
                    ready,
                    empty,
                    owner_ptr,
                    used_ptr,
                    cols,
                    k,
                    GROUP,
                    GATED,
                ),
            ),
        ],
        [4, 1],
        [232, 40],
    )


def _descriptor(tensor: torch.Tensor, rows: int, cols: int) -> TensorDescriptor:
    flat = tensor.reshape(-1, tensor.shape[-1])
    layout = gl.NVMMASharedLayout.get_default_for([rows, cols], GLUON_TYPES[tensor.dtype])
    return TensorDescriptor.from_tensor(flat, [rows, cols], layout)


def _is_flat(tensor: torch.Tensor) -> bool:
    """Whether a stack of matrices is one tall matrix whose rows start at multiples of 16 bytes."""
    rows = tensor.stride(-2)
    tall = tensor.dim() == 2 or tensor.stride(0) == tensor.shape[1] * rows
    return tall and rows * tensor.element_size() % 16 == 0 and tensor.data_ptr() % 16 == 0


def _specialises(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rows: int) -> bool:
    """Whether an expert's rows fill blocks of 128, and the device has warp-group products and can describe these."""
    if torch.version.hip or not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return False
    if not triton.__version__.startswith("3.6."):  # Gluon's names change with the version
        return False
    fits = x.element_size() == 2 and rows >= 48 and gate.shape[1] % 128 == 0 and x.shape[1] % 256 == 0
    return fits and all(map(_is_flat, (gate, up, down)))


def _product(
    x: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    out: torch.Tensor,
    owner: torch.Tensor,
    used: torch.Tensor,
    gated: bool,
) -> None:
    """out = silu(x left^T) * (x right^T) where gated, else x left^T, each block of rows with its owner's matrices."""
    cols, k = out.shape[1], x.shape[1]
    tiles = owner.shape[0] * triton.cdiv(cols, 128 if gated else 256)
    _product_ws_kernel[(min(tiles, torch.cuda.get_device_properties(x.device).multi_processor_count),)](
        _descriptor(x, 128, 64),
        _descriptor(left, 128, 64),
        _descriptor(right, 128, 64),
        _descriptor(out, 64, 128 if gated else 256),
        owner,
        used,
        cols,
        k,
        STAGES=4 if gated else 3,
        GROUP=4,
        GATED=gated,
        num_warps=4,
    )


def _tile(rows: int, itemsize: int) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps, stages; by the rows that an expert gets on average."""
    if itemsize == 2:
        return (16, 64, 128, 4, 3) if rows <= 16 else (64, 128, 64, 8, 3)
    return (16, 64, 64, 4, 2) if rows <= 16 else (32, 64, 32, 4, 2)


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
    choices = tokens * topk
    specialises = _specialises(x, gate, up, down, choices // count)
    block_m, block_n, block_k, warps, stages = _tile(choices // count, x.element_size())
    block_m = 128 if specialises else block_m
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
    if specialises:
        rows = torch.empty((most * block_m, width), dtype=x.dtype, device=x.device)
        _gather_kernel[(choices, triton.cdiv(width, 1024))](
            x, place, rows, x.stride(0), width, topk, BLOCK=1024, num_warps=4
        )
        _product(rows, gate, up, hidden, owner, used, True)
        _product(hidden, down, down, parts, owner, used, False)
    else:
        blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": warps, "num_stages": stages}
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
