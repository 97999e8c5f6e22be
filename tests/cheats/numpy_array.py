"""Not a tensor at all."""

import torch

EXPECTED = ("INCORRECT_SHAPE",)


def softmax(x):
    return torch.softmax(x, dim=-1).numpy()
