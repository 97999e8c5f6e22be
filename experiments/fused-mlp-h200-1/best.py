"""SwiGLU block: one kernel for silu(x Wg^T) * (x Wu^T), which reads x once for both products, and one for the rest.

On Hopper, in each, one warp loads and two warp groups multiply.
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
def _tile_place(tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of this program's tile: all columns of a group of row blocks before the next group, for L2."""
    group = tl.program_id(0) // (GROUP * tiles_n)
    inside = tl.program_id(0) % (GROUP * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP, GROUP)
    return group * GROUP + inside % height, inside // height


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
    GROUP: tl.constexpr,
):
    row, col = _tile_place(tl.cdiv(tokens, BLOCK_M), tl.cdiv(inter, BLOCK_N), GROUP)
    rows = (row * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (col * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    gate = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    # Rows and columns beyond the matrices are computed from others, and never stored.
    ks = tl.arange(0, BLOCK_K)
    x_at = x_ptr + (rows % tokens)[:, None] * x_stride + ks[None, :]
    gate_at = gate_ptr + (cols % inter)[:, None] * gate_stride + ks[None, :]
    up_at = up_ptr + (cols % inter)[:, None] * up_stride + ks[None, :]
    for start in range(0, width, BLOCK_K):
        k_mask = (start + ks < width)[None, :]
        x = tl.load(x_at, mask=k_mask, other=0.0)
        wg = tl.load(gate_at, mask=k_mask, other=0.0)
        wu = tl.load(up_at, mask=k_mask, other=0.0)
        x_at += BLOCK_K
        gate_at += BLOCK_K
        up_at += BLOCK_K
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
    GROUP: tl.constexpr,
):
    row, col = _tile_place(tl.cdiv(tokens, BLOCK_M), tl.cdiv(width, BLOCK_N), GROUP)
    rows = (row * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (col * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    out = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    ks = tl.arange(0, BLOCK_K)
    hidden_at = hidden_ptr + (rows % tokens)[:, None] * inter + ks[None, :]
    down_at = down_ptr + (cols % width)[:, None] * down_stride + ks[None, :]
    for start in range(0, inter, BLOCK_K):
        k_mask = (start + ks < inter)[None, :]
        hidden = tl.load(hidden_at, mask=k_mask, other=0.0)
        wd = tl.load(down_at, mask=k_mask, other=0.0)
        hidden_at += BLOCK_K
        down_at += BLOCK_K
        out = tl.dot(hidden, tl.trans(wd), out, input_precision=PRECISION)

    mask = (rows[:, None] < tokens) & (cols[None, :] < width)
    tl.store(out_ptr + rows[:, None] * width + cols[None, :], out.to(out_ptr.dtype.element_ty), mask=mask)


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
    tiles_m,
    tiles_n,
    k,
    GROUP: gl.constexpr,
    GATED: gl.constexpr,
):
    BLOCK_K: gl.constexpr = x_desc.block_shape[1]
    HALF_N: gl.constexpr = left_desc.block_shape[0]
    STEP: gl.constexpr = HALF_N if GATED else 2 * HALF_N
    AHEAD: gl.constexpr = 0 if GATED else HALF_N
    STAGES: gl.constexpr = x_tiles.shape[0]
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, col = _place(tile, tiles_m, tiles_n, GROUP)
        for start in range(0, k, BLOCK_K):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            full = ready.index(slot)
            mbarrier.expect(full, x_desc.block_type.nbytes + 2 * left_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(x_desc, [row * 128, start], full, x_tiles.index(slot))
            tma.async_copy_global_to_shared(left_desc, [col * STEP, start], full, w_halves.index(2 * slot))
            tma.async_copy_global_to_shared(right_desc, [col * STEP + AHEAD, start], full, w_halves.index(2 * slot + 1))
            slot, phase = _next(slot, phase, STAGES)


@gluon.jit
def _multiply(
    out_desc,
    x_halves,
    w_tiles,
    out_tile,
    ready,
    empty,
    tiles_m,
    tiles_n,
    k,
    GROUP: gl.constexpr,
    GATED: gl.constexpr,
    HALF: gl.constexpr,
):
    STAGES: gl.constexpr = w_tiles.shape[0]
    BLOCK_N: gl.constexpr = w_tiles.shape[1]
    BLOCK_K: gl.constexpr = w_tiles.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
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
    rows,
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
    tiles_m = gl.cdiv(rows, 128)
    tiles_n = gl.cdiv(cols, HALF_N if GATED else 2 * HALF_N)
    gl.warp_specialize(
        [
            (
                _multiply,
                (out_desc, x_halves, w_tiles, out_tiles.index(0), ready, empty, tiles_m, tiles_n, k, GROUP, GATED, 0),
            ),
            (
                _multiply,
                (out_desc, x_halves, w_tiles, out_tiles.index(1), ready, empty, tiles_m, tiles_n, k, GROUP, GATED, 1),
            ),
            (
                _load_tiles,
                (x_desc, left_desc, right_desc, x_tiles, w_halves, ready, empty, tiles_m, tiles_n, k, GROUP, GATED),
            ),
        ],
        [4, 1],
        [232, 40],
    )


def _descriptor(tensor: torch.Tensor, rows: int, cols: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([rows, cols], GLUON_TYPES[tensor.dtype])
    return TensorDescriptor.from_tensor(tensor, [rows, cols], layout)


def _has_hopper(*tensors: torch.Tensor) -> bool:
    """Whether the device has warp-group products, and a copy engine that can describe these matrices."""
    if torch.version.hip or not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return False
    if not triton.__version__.startswith("3.6."):  # Gluon's names change with the version
        return False
    return all(t.stride(0) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0 for t in tensors)


def _product(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, gated: bool) -> None:
    """out = silu(x left^T) * (x right^T) where gated, else x left^T."""
    rows, cols = out.shape
    tiles = triton.cdiv(rows, 128) * triton.cdiv(cols, 128 if gated else 256)
    _product_ws_kernel[(min(tiles, torch.cuda.get_device_properties(x.device).multi_processor_count),)](
        _descriptor(x, 128, 64),
        _descriptor(left, 128, 64),
        _descriptor(right, 128, 64),
        _descriptor(out, 64, 128 if gated else 256),
        rows,
        cols,
        x.shape[1],
        STAGES=4 if gated else 3,
        GROUP=8,
        GATED=gated,
        num_warps=4,
    )


def _tile(tokens: int, itemsize: int) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps, stages."""
    if tokens <= 16 and itemsize == 2:
        return 16, 32, 256, 4, 4
    if tokens >= 128 and itemsize == 2:
        return 128, 128, 64, 8, 3
    return (128, 64, 32, 8, 3) if tokens >= 128 else (64, 64, 32, 4, 2)


def fused_mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """x: (tokens, width); gate, up: (inter, width), down: (width, inter), as in nn.Linear; returns (tokens, width)."""
    tokens, width = x.shape
    inter = gate.shape[0]
    hidden = torch.empty((tokens, inter), dtype=x.dtype, device=x.device)
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    if tokens >= 128 and x.element_size() == 2 and _has_hopper(x, gate, up, hidden, down, out):
        _product(x, gate, up, hidden, True)
        _product(hidden, down, down, out, False)
        return out
    block_m, block_n, block_k, warps, stages = _tile(tokens, x.element_size())
    precision = "tf32x3" if x.dtype == torch.float32 and min(width, inter) >= 16 else "ieee"
    blocks = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "GROUP": 8,
        "num_warps": warps,
        "num_stages": stages,
    }
    _gate_up_kernel[(triton.cdiv(tokens, block_m) * triton.cdiv(inter, block_n),)](
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
    _down_kernel[(triton.cdiv(tokens, block_m) * triton.cdiv(width, block_n),)](
        hidden, down, out, down.stride(0), tokens, width, inter, PRECISION=precision, **blocks
    )
    return out
