"""The incumbent: right and unhurried, in strips."""

import torch


def matmul(a, b):
    out = torch.empty(a.shape[0], b.shape[1])
    for row in range(a.shape[0]):
        out[row] = (a[row, :, None] * b).sum(dim=0)
    return out
