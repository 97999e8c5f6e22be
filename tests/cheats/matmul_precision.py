"""Allows reduced precision globally."""

import torch

EXPECTED = ("CHEATED",)
PROBLEM = "matmul"


def matmul(a, b):
    torch.set_float32_matmul_precision("medium")
    return a @ b
