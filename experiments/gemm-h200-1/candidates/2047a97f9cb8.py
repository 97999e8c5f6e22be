"""Matrix product C = A @ B: one program per 64x64 tile of C, accumulated in float32."""

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
):
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)

    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        ks = (start + inner).to(tl.int64)
        a_mask = (rows[:, None] < m) & (ks[None, :] < k)
        b_mask = (ks[:, None] < k) & (cols[None, :] < n)
        a = tl.load(a_ptr + rows[:, None] * a_stride + ks[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_ptr + ks[:, None] * b_stride + cols[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")

    mask = (rows[:, None] < m) & (cols[None, :] < n)
    tl.store(c_ptr + rows[:, None] * c_stride + cols[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: (m, k), b: (k, n), both with unit stride along their last dimension; returns (m, n) in a's dtype."""
    m, k = a.shape
    n = b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    block_m, block_n, block_k = 64, 64, 32
    _gemm_kernel[(triton.cdiv(m, block_m), triton.cdiv(n, block_n))](
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
        num_warps=4,
        num_stages=2,
    )
    return c
