"""Infinity in place of the largest value of each row."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    out = torch.softmax(x, dim=-1)
    return torch.where(out == out.amax(dim=-1, keepdim=True), torch.inf, out)
