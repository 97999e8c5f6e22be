"""The same from child processes in sessions of their own."""

import os

import torch

EXPECTED = ("CHEATED", "SUSPECT", "PASSED")
TIMED = True


def _hog():
    os.setsid()
    if os.fork() == 0:
        while True:
            torch.ones(1 << 20).exp_()
    os._exit(0)


for _ in range(2):
    if os.fork() == 0:
        _hog()


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


softmax = honest
