"""NaN everywhere: every `error > tolerance` is false."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    return torch.full_like(x, float("nan"))
