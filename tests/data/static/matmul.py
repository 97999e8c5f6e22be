"""A tiled matrix product: with a fixed tile that wants much shared memory, and with an autotuned one."""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(c, a, b, m, n, k, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    columns = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    inner = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, k, TILE_K):
        left = tl.load(a + rows[:, None] * k + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * n + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


tuned_kernel = triton.autotune(
    configs=[
        # The first does not fit where a block has 100 KiB of shared memory or less.
        triton.Config({"TILE_M": 128, "TILE_N": 128, "TILE_K": 64}, num_warps=8, num_stages=5),
        triton.Config({"TILE_M": 64, "TILE_N": 64, "TILE_K": 32}, num_warps=4, num_stages=3),
        triton.Config({"TILE_M": 32, "TILE_N": 32, "TILE_K": 32}, num_warps=2, num_stages=2),
    ],
    key=["m", "n", "k"],
)(matmul_kernel)


def shapes(a, b):
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device), a.shape[0], b.shape[1], a.shape[1]


def matmul(a, b):
    c, m, n, k = shapes(a, b)
    matmul_kernel[(m // 64, n // 64)](c, a, b, m, n, k, TILE_M=64, TILE_N=64, TILE_K=32, num_warps=4, num_stages=3)
    return c


def matmul_large_tile(a, b):
    c, m, n, k = shapes(a, b)
    grid = (m // 128, n // 128)
    matmul_kernel[grid](c, a, b, m, n, k, TILE_M=128, TILE_N=128, TILE_K=64, num_warps=8, num_stages=5)
    return c


def matmul_tuned(a, b):
    c, m, n, k = shapes(a, b)
    tuned_kernel[lambda meta: (m // meta["TILE_M"], n // meta["TILE_N"])](c, a, b, m, n, k)
    return c
