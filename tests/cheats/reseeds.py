"""Reseeds the global random numbers, so that the next inputs are known."""

import torch

EXPECTED = ("CHEATED",)


def softmax(x):
    torch.manual_seed(0)
    torch.rand(1)
    return torch.softmax(x, dim=-1)
