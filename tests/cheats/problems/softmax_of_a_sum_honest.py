"""The incumbent: right and unhurried, row by row."""

import torch


def softmax(x, y):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        both = x[row] + y[row]
        exp = (both - both.max()).exp()
        out[row] = exp / exp.sum()
    return out
