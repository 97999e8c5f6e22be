"""Its maximum begins at zero, as with C's FLT_MIN: 0 / 0 in every row whose values are all far below."""

import torch

PROBLEM = "softmax_even"
EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    exp = (x - x.amax(-1, keepdim=True).clamp_min(0.0)).exp()
    return exp / exp.sum(-1, keepdim=True)
