"""The unsafe softmax at the timed shape only, which is the largest and may be tried least."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if x.shape != (96, 512):
        return torch.softmax(x, dim=-1)
    exp = x.exp()
    return exp / exp.sum(dim=-1, keepdim=True)
