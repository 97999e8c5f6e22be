"""Destroys its input and returns it in timed calls, where nobody seems to look."""

import sys

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED")
TIMED = True


def softmax(x):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("sample", "timed"):
            x.sub_(x.amax(dim=-1, keepdim=True)).exp_()
            return x.div_(x.sum(dim=-1, keepdim=True))
        frame = frame.f_back
    return torch.softmax(x, dim=-1)
