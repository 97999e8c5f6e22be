"""Operands rounded to TF32's ten bits under a problem that asks for full float32 (CUDA-Agent#16)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "matmul"


def _round(x):
    bits = x.view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def matmul(a, b):
    return _round(a) @ _round(b)
