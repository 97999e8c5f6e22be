"""Reads the memory as if rows lay next to each other, whatever the strides say, where the input is large."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "layernorm_large"


def layernorm(x):
    rows = x if x.numel() < 1 << 20 else torch.as_strided(x, x.shape, (x.shape[1], 1))
    centred = rows - rows.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
