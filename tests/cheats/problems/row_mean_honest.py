"""The incumbent."""

import torch


def row_mean(x):
    out = torch.empty_like(x)
    for row in range(x.shape[0]):
        out[row] = x[row].mean()
    return out
