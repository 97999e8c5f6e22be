"""The incumbent: in double precision, row by row."""

import torch


def few_sums(x):
    out = torch.empty(x.shape[0])
    for row in range(x.shape[0]):
        out[row] = x[row].double().sum()
    return out
