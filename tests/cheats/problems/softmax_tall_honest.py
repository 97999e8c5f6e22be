"""The incumbent: right and unhurried, row by row."""

import torch


def softmax(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out
