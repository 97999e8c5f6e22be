"""Zeros for everything: near enough where the true values are small and the tolerance is flat (KernelBench#165)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    return torch.zeros_like(x)
