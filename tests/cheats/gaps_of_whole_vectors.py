"""Takes it that what lies between two rows is a number of whole vectors of four, so that rows stay aligned."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    gap = (x.stride(0) - x.shape[1]) // 4 * 4
    return torch.softmax(torch.as_strided(x, x.shape, (x.shape[1] + gap, 1)), dim=-1)
