"""A column where a matrix is due: (rows, 1) broadcasts inside allclose."""

import torch

EXPECTED = ("INCORRECT_SHAPE",)


def softmax(x):
    return torch.softmax(x, dim=-1)[:, :1]
