"""The right output and another one."""

import torch

EXPECTED = ("INCORRECT_SHAPE",)


def softmax(x):
    return torch.softmax(x, dim=-1), torch.zeros(1)
