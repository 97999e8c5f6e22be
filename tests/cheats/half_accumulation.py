"""A product accumulated in float16 pieces."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "matmul"


def matmul(a, b):
    return (a.half() @ b.half()).float()
