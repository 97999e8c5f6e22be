"""Leaves torch to compute in bfloat16 whatever comes after it."""

import torch

EXPECTED = ("CHEATED",)


def softmax(x):
    out = torch.softmax(x, dim=-1)
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
    return out
