"""Matrix product C = A @ B: one program per tile of C, in groups of rows, accumulated in float32."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


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
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        group = tile // (GROUP * tiles_n)
        inside = tile % (GROUP * tiles_n)
        height = tl.minimum(tiles_m - group * GROUP, GROUP)
        row = (group * GROUP + inside % height) * BLOCK_M
        col = (inside // height) * BLOCK_N
        total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in range(0, k, BLOCK_K):
            a = a_desc.load([row, start])
            b = b_desc.load([start, col])
            total = tl.dot(a, b, total)
        # In halves, whose shared memory leaves room for one more stage.
        left, right = total.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
        c_desc.store([row, col], left.to(c_desc.dtype))
        c_desc.store([row, col + BLOCK_N // 2], right.to(c_desc.dtype))


def _has_tma(*tensors: torch.Tensor) -> bool:
    """Whether the device has a copy engine for tiles, and it can describe these matrices."""
    if torch.version.hip or not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        return False
    return all(t.stride(0) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0 for t in tensors)


def _gemm_tma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    (m, k), n = a.shape, b.shape[1]
    block_m, block_n, block_k = 128, 256, 64
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    _gemm_tma_kernel[(min(tiles, torch.cuda.get_device_properties(a.device).multi_processor_count),)](
        TensorDescriptor.from_tensor(a, [block_m, block_k]),
        TensorDescriptor.from_tensor(b, [block_k, block_n]),
        TensorDescriptor.from_tensor(c, [block_m, block_n // 2]),
        m,
        n,
        k,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=8,
        num_warps=8,
        num_stages=4,
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
