"""A sparse tensor: its dense values come into being only when it is copied."""

import torch

EXPECTED = ("CHEATED",)


def softmax(x):
    return torch.softmax(x, dim=-1).to_sparse()
