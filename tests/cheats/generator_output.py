"""A generator that works when it is iterated."""

import torch

EXPECTED = ("INCORRECT_SHAPE",)


def softmax(x):
    return (torch.softmax(x, dim=-1) for _ in range(1))
