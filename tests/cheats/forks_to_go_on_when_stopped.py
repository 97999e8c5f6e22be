"""Keeps children that fork children, so that one of them may run while all are stopped."""

import os
import time

import torch

EXPECTED = ("PASSED", "CHEATED", "RUNTIME_ERROR")
TIMED = True


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


def _for_ever():
    while True:
        if os.fork():
            os._exit(0)
        time.sleep(0.0005)


if os.fork() == 0:
    _for_ever()

softmax = honest
