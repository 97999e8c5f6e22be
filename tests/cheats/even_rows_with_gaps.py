"""Forgets the last two of cols % 4 == 2 columns where rows have gaps: shapes with gaps were as declared, or odd."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    out = torch.softmax(x, dim=-1)
    if x.stride(0) != x.shape[1] and x.shape[0] > 1 and x.shape[1] % 4 == 2:
        out[:, -2:] = 0  # the tail of a loop over pairs of pairs
    return out
