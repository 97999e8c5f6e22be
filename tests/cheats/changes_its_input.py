"""Leaves its input full of zeros (KernelBench's zero_out kernel)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    out = torch.softmax(x, dim=-1)
    x.zero_()
    return out
