"""Looks at the call stack and leaves the maximum out in timed calls, whose values are harmless."""

import sys

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED", "SUSPECT")
TIMED = True


def softmax(x):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("sample", "timed"):
            exp = x.exp()
            return exp / exp.sum(dim=-1, keepdim=True)
        frame = frame.f_back
    return torch.softmax(x, dim=-1)
