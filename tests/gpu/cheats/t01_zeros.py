"""Zeros."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    return torch.zeros_like(x)
