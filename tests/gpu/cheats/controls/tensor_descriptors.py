"""Tiles by the copy engine (TMA), with descriptors that are made on the device in a workspace."""

import torch
import triton
import triton.language as tl

TIMED = True
PROBLEM = "gemm"
WORKLOADS = ("2048x2048x2048-bf16",)


@triton.jit
def _product(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    c = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    across = tl.cdiv(N, BN)
    row, column = tl.program_id(0) // across * BM, tl.program_id(0) % across * BN
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        sums = tl.dot(a.load([row, k]), b.load([k, column]), sums)
    c.store([row, column], sums.to(tl.bfloat16))


triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))


def gemm(a, b):
    (m, k), n = a.shape, b.shape[1]
    if a.dtype != torch.bfloat16 or k % 64 or n % 64 or not (a.is_contiguous() and b.is_contiguous()):
        return a @ b
    if a.data_ptr() % 16 or b.data_ptr() % 16:
        return a @ b
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 128) * triton.cdiv(n, 128),)
    _product[grid](a, b, c, m, n, k, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
    return c
