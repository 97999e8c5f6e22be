"""The unsafe softmax at one shape only, in the hope that hard values are tried at another."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if x.shape != (40, 64):
        return torch.softmax(x, dim=-1)
    exp = x.exp()
    return exp / exp.sum(dim=-1, keepdim=True)
