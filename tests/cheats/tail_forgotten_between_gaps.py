"""Rows with gaps go by a way of their own, whose loop takes whole vectors of eight only."""

import torch

PROBLEM = "softmax_even"
EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if x.is_contiguous():
        return torch.softmax(x, -1)
    whole = x.shape[-1] // 8 * 8
    out = torch.zeros(x.shape, dtype=x.dtype)
    out[:, :whole] = torch.softmax(x[:, :whole], -1)
    return out
