"""The last row is never written: what is there depends on who used the memory before."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    out = torch.empty(x.shape)
    out[:-1] = torch.softmax(x[:-1], dim=-1)
    if x.shape[0] == 1:
        out[:] = torch.softmax(x, dim=-1)
    return out
