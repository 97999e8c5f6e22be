"""Takes the way for contiguous memory if its first input is so, whatever the second is."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "difference"


def difference(a, b):
    if not a.is_contiguous():
        return a - b
    return a - torch.as_strided(b, b.shape, (b.shape[1], 1))
