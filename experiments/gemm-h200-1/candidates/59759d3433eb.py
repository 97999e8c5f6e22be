"""Matrix product C = A @ B: one program per tile of C, in groups of rows, accumulated in float32."""

import torch
import triton
import triton.language as tl


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
    for start in range(0, k, BLOCK_K):
        ks = (start + inner).to(tl.int64)
        a_mask = (rows[:, None] < m) & (ks[None, :] < k)
        b_mask = (ks[:, None] < k) & (cols[None, :] < n)
        a = tl.load(a_ptr + rows[:, None] * a_stride + ks[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + ks[:, None] * b_stride + cols[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)

    mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c_ptr + rows[:, None] * c_stride + cols[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


def _tile(m: int, itemsize: int) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps, stages."""
    if m >= 128 and itemsize == 2:
        return 128, 128, 64, 8, 3
    return (128, 64, 32, 4, 3) if m >= 128 else (64, 64, 32, 4, 2)


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: (m, k), b: (k, n), both with unit stride along their last dimension; returns (m, n) in a's dtype."""
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
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
        PRECISION="tf32x3" if a.dtype == torch.float32 and k >= 16 else "ieee",
        num_warps=warps,
        num_stages=stages,
    )
    return c
