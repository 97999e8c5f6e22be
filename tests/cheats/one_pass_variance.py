"""The mean of the squares less the square of the mean, which cancels where the mean is large."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "layernorm"


def layernorm(x):
    mean = x.mean(dim=-1, keepdim=True)
    variance = x.square().mean(dim=-1, keepdim=True) - mean.square()
    return (x - mean) / (variance.clamp_min(0) + 1e-5).sqrt()
