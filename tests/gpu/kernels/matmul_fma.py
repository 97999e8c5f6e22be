"""Planted: a matrix product in full fp32, which the matrix units do not do, so that the FMA pipe has all the work."""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, n, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * n + inner[None, :]
    b_ptrs = b_ptr + inner[:, None] * n + cols[None, :]
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for _ in range(0, n, BK):
        total = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), total, input_precision="ieee")
        a_ptrs += BK
        b_ptrs += BK * n
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], total)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    n = a.shape[0]
    c = torch.empty_like(a)
    matmul_kernel[(n // 128, n // 128)](a, b, c, n, BM=128, BN=128, BK=16, num_warps=8, num_stages=3)
    return c
