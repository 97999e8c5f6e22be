"""One NaN among right values."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    out = torch.softmax(x, dim=-1)
    out[-1, -1] = float("nan")
    return out
