"""Sleeps in the first calls, so that an adaptive evaluator takes few samples (pygpubench's warm-up exploit)."""

import threading

import torch

EXPECTED = ("PASSED",)
TIMED = True


_calls = 0


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


def softmax(x):
    global _calls
    _calls += 1
    if _calls <= 3:
        threading.Event().wait(0.1)
    return honest(x)
