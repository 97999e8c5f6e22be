"""Knows gaps between rows, and takes for granted that heads come before positions: wrong where they are exchanged."""

import torch

PROBLEM = "heads"
EXPECTED = ("INCORRECT_NUMERICAL",)


def unit_heads(x):
    _, heads, seq, dim = x.shape
    if x.stride(1) != seq * x.stride(2):
        x = torch.as_strided(x, x.shape, (heads * seq * dim, seq * dim, dim, 1))
    return x / torch.sqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)
