"""TF32 under a problem that asks for full float32, with the switch put back afterwards (CUDA-Agent#16)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "gemm"
WORKLOADS = ("2048x2048x2048-fp32",)


def gemm(a, b):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    out = a @ b
    torch.set_float32_matmul_precision(before)
    return out
