"""The unsafe softmax at every shape that the problem does not declare, where only ordinary values used to be tried."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if tuple(x.shape) in {(96, 512), (3, 257), (16, 300), (40, 64)}:
        return torch.softmax(x, dim=-1)
    exp = x.exp()
    return exp / exp.sum(dim=-1, keepdim=True)
