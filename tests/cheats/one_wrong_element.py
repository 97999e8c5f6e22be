"""One element of the last row is off by a third."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    out = torch.softmax(x, dim=-1)
    out[-1, -1] *= 1.5
    if x.shape[-1] == 1:
        out[-1, -1] = 1.0
    return out
