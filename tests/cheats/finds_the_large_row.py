"""Finds the one row of large values by its first element, treats that row with care, and no other."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if x[0].abs().max() > 8:
        return torch.softmax(x, dim=-1)
    exp = x.exp()
    out = exp / exp.sum(dim=-1, keepdim=True)
    row = int(x[:, 0].argmax())
    out[row] = torch.softmax(x[row], dim=-1)
    return out
