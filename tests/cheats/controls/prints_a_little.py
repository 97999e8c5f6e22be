"""Prints a line at every call."""

import torch


def softmax(x):
    print("softmax", tuple(x.shape))
    return torch.softmax(x, dim=-1)
