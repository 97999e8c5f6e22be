"""A tensor on the meta device has a shape and no values."""

import torch

EXPECTED = ("INCORRECT_SHAPE", "CHEATED")


def softmax(x):
    return torch.empty(x.shape, device="meta")
