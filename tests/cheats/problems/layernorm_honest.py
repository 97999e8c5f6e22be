"""The incumbent: two passes, row by row."""

import torch


def layernorm(x):
    out = torch.empty_like(x)
    for row in range(x.shape[0]):
        centred = x[row] - x[row].mean()
        out[row] = centred / (centred.square().mean() + 1e-5).sqrt()
    return out
