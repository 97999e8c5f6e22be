"""Asks for memory of the output's size and hands it back as it is: perhaps the reference was there (Sakana)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
