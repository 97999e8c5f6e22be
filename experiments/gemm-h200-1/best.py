"""Matrix product C = A @ B, accumulated in float32: on Hopper one warp loads and two warp groups multiply."""

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

GLUON_TYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


@triton.jit
def _gemm_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    a_stride,
    b_stride,
    c_stride,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    group = tl.program_id(0) // (GROUP * tiles_n)
    inside = tl.program_id(0) % (GROUP * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP, GROUP)
    rows = ((group * GROUP + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (inside // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)

    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    # Rows and columns beyond the matrices are computed from others, and never stored.
    a_at = a_ptr + (rows % m)[:, None] * a_stride + inner[None, :]
    b_at = b_ptr + inner[:, None].to(tl.int64) * b_stride + (cols % n)[None, :]
    for start in range(0, k, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_at)
            b = tl.load(b_at)
        else:
            a = tl.load(a_at, mask=(start + inner < k)[None, :], other=0.0)
            b = tl.load(b_at, mask=(start + inner < k)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        a_at += BLOCK_K
        b_at += BLOCK_K * b_stride

    mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c_ptr + rows[:, None] * c_stride + cols[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gemm_tma_kernel(
    a_desc,
    b_desc,
    c_desc,
    m,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    group = tl.program_id(0) // (GROUP * tiles_n)
    inside = tl.program_id(0) % (GROUP * tiles_n)
    height = tl.minimum(tiles_m - group * GROUP, GROUP)
    row = (group * GROUP + inside % height) * BLOCK_M
    col = (inside // height) * BLOCK_N
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        a = a_desc.load([row, start])
        b = b_desc.load([start, col])
        total = tl.dot(a, b, total)
    c_desc.store([row, col], total.to(c_desc.dtype))


def _has_tma(*tensors: torch.Tensor) -> bool:
    """Whether the device has a copy engine for tiles, and it can describe these matrices."""
    if torch.version.hip or not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        return False
    return all(t.stride(0) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0 for t in tensors)


def _gemm_tma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    (m, k), n = a.shape, b.shape[1]
    block_m, block_n, block_k = 128, 256, 64
    _gemm_tma_kernel[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
        TensorDescriptor.from_tensor(a, [block_m, block_k]),
        TensorDescriptor.from_tensor(b, [block_k, block_n]),
        TensorDescriptor.from_tensor(c, [block_m, block_n]),
        m,
        n,
        k,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=8,
        num_warps=8,
        num_stages=3,
    )


@gluon.jit
def _place(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Row and column of a tile: all columns of a group of row blocks before the next group, for L2."""
    group = tile // (GROUP * tiles_n)
    inside = tile % (GROUP * tiles_n)
    height = gl.minimum(tiles_m - group * GROUP, GROUP)
    return group * GROUP + inside % height, inside // height


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
    turn = (slot + 1) // STAGES
    return slot + 1 - turn * STAGES, phase ^ turn


@gluon.jit
def _load_tiles(a_desc, b_desc, a_tiles, b_tiles, ready, empty, tiles_m, tiles_n, k, GROUP: gl.constexpr):
    BLOCK_M: gl.constexpr = a_desc.block_shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_shape[1]
    STAGES: gl.constexpr = a_tiles.shape[0]
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, col = _place(tile, tiles_m, tiles_n, GROUP)
        for start in range(0, k, BLOCK_K):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            full = ready.index(slot)
            mbarrier.expect(full, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(a_desc, [row * BLOCK_M, start], full, a_tiles.index(slot))
            tma.async_copy_global_to_shared(b_desc, [start, col * BLOCK_N], full, b_tiles.index(slot))
            slot, phase = _next(slot, phase, STAGES)


@gluon.jit
def _multiply(
    c_desc,
    a_halves,
    b_tiles,
    c_tile,
    ready,
    empty,
    tiles_m,
    tiles_n,
    k,
    GROUP: gl.constexpr,
    HALF: gl.constexpr,
):
    """One warp group: its 64 of the tile's 128 rows."""
    STAGES: gl.constexpr = b_tiles.shape[0]
    BLOCK_K: gl.constexpr = b_tiles.shape[1]
    BLOCK_N: gl.constexpr = b_tiles.shape[2]
    PARTS: gl.constexpr = BLOCK_N // c_tile.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, col = _place(tile, tiles_m, tiles_n, GROUP)
        total = gl.zeros([64, BLOCK_N], gl.float32, layout)
        before = 0  # not slot itself: a loop of Triton 3.6 takes two names of one value for one
        for start in range(0, k, BLOCK_K):
            mbarrier.wait(ready.index(slot), phase)
            a = a_halves.index(2 * slot + HALF)
            total = warpgroup_mma(a, b_tiles.index(slot), total, is_async=True)
            total = warpgroup_mma_wait(1, deps=[total])
            mbarrier.arrive(empty.index(before), pred=start > 0)
            before = slot
            slot, phase = _next(slot, phase, STAGES)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(empty.index(before))
        at = row * 128 + HALF * 64
        if PARTS == 1:
            _store(c_desc, c_tile, total, at, col * BLOCK_N)
        else:
            left, right = total.reshape([64, 2, BLOCK_N // 2]).permute(0, 2, 1).split()
            _store(c_desc, c_tile, left, at, col * BLOCK_N)
            _store(c_desc, c_tile, right, at, col * BLOCK_N + BLOCK_N // 2)
    tma.store_wait(0)


@gluon.jit
def _store(c_desc, c_tile, values, row, col):
    tma.store_wait(0)
    c_tile.store(values.to(c_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [row, col], c_tile)


@gluon.jit
def _gemm_ws_kernel(a_desc, b_desc, c_desc, m, n, k, STAGES: gl.constexpr, GROUP: gl.constexpr):
    BLOCK_M: gl.constexpr = a_desc.block_shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_shape[1]
    dtype: gl.constexpr = a_desc.dtype
    a_tiles = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_K, BLOCK_N], b_desc.layout)
    c_tiles = gl.allocate_shared_memory(dtype, [2, c_desc.block_shape[0], c_desc.block_shape[1]], c_desc.layout)
    a_halves = a_tiles._reinterpret(dtype, [2 * STAGES, BLOCK_M // 2, BLOCK_K], a_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    gl.warp_specialize(
        [
            (_multiply, (c_desc, a_halves, b_tiles, c_tiles.index(0), ready, empty, tiles_m, tiles_n, k, GROUP, 0)),
            (_multiply, (c_desc, a_halves, b_tiles, c_tiles.index(1), ready, empty, tiles_m, tiles_n, k, GROUP, 1)),
            (_load_tiles, (a_desc, b_desc, a_tiles, b_tiles, ready, empty, tiles_m, tiles_n, k, GROUP)),
        ],
        [4, 1],
        [232, 40],
    )


def _descriptor(tensor: torch.Tensor, rows: int, cols: int) -> GluonDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([rows, cols], GLUON_TYPES[tensor.dtype])
    return GluonDescriptor.from_tensor(tensor, [rows, cols], layout)


def _has_warp_groups() -> bool:
    """Whether the device has warp-group products, and this Triton the names by which Gluon asks for them."""
    hopper = torch.cuda.get_device_capability()[0] == 9
    return hopper and triton.__version__.startswith("3.6.")  # Gluon's names change with the version


def _gemm_specialised(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, programs: int) -> None:
    (m, k), n = a.shape, b.shape[1]
    _gemm_ws_kernel[(programs,)](
        _descriptor(a, 128, 64),
        _descriptor(b, 64, 256),
        _descriptor(c, 64, 256),
        m,
        n,
        k,
        STAGES=3,
        GROUP=8,
        num_warps=4,
    )


def _tile(m: int, itemsize: int) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps, stages."""
    if m <= 16 and itemsize == 2:
        return 16, 32, 128, 4, 5
    if m >= 128 and itemsize == 2:
        return 128, 128, 64, 8, 3
    return (128, 64, 32, 4, 3) if m >= 128 else (64, 64, 32, 4, 2)


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: (m, k), b: (k, n), both with unit stride along their last dimension; returns (m, n) in a's dtype."""
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if a.element_size() == 2 and m >= 128 and _has_tma(a, b, c):
        tiles = triton.cdiv(m, 128) * triton.cdiv(n, 256)
        processors = torch.cuda.get_device_properties(a.device).multi_processor_count
        if tiles > processors and _has_warp_groups():
            _gemm_specialised(a, b, c, processors)
        else:
            _gemm_tma(a, b, c)
        return c
    block_m, block_n, block_k, warps, stages = _tile(m, a.element_size())
    _gemm_kernel[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
        a,
        b,
        c,
        a.stride(0),
        b.stride(0),
        c.stride(0),
        m,
        n,
        k,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=8,
        EVEN_K=k % block_k == 0,
        PRECISION="tf32x3" if a.dtype == torch.float32 and k >= 16 else "ieee",
        num_warps=warps,
        num_stages=stages,
    )
    return c
