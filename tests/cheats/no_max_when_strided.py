"""The unsafe softmax for inputs with gaps between their rows, in the hope that hard values come without gaps."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if x.is_contiguous():
        return torch.softmax(x, dim=-1)
    exp = x.exp()
    return exp / exp.sum(dim=-1, keepdim=True)
