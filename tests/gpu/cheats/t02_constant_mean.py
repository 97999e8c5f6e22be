"""1 / cols everywhere."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    return torch.full_like(x, 1 / x.shape[-1])
