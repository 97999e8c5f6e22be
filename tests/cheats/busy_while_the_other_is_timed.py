"""A thread that keeps every core busy whenever this candidate is not being called, so that the incumbent looks slow."""

import os
import threading
import time

import torch

EXPECTED = ("CHEATED", "SUSPECT", "PASSED")
TIMED = True


_last = time.monotonic()


def _hog():
    while True:
        if time.monotonic() - _last > 0.002:
            torch.ones(1 << 22).exp_().sum()
        else:
            time.sleep(0.0005)


for _ in range(2 * (os.cpu_count() or 1)):
    threading.Thread(target=_hog, daemon=True).start()


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


def softmax(x):
    global _last
    _last = time.monotonic() + 10
    out = honest(x)
    _last = time.monotonic()
    return out
