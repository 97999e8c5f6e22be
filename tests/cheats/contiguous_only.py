"""Reads the memory as if rows lay next to each other, whatever the strides say."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    flat = torch.as_strided(x, (x.numel(),), (1,))
    return torch.softmax(flat.reshape(x.shape), dim=-1)
