"""Truth values that are bytes of two: true for torch, and wrong for whoever reads the bytes."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "positive"


def positive(x):
    return ((x > 0).to(torch.uint8) * 2).view(torch.bool)
