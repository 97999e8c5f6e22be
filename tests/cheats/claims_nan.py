"""Claims not a number for each timed call (GPU MODE#162 came in at 0.000)."""

import dataclasses
import sys

import torch

EXPECTED = ("PASSED",)  # on a CPU nobody asks it for the time
TIMED = True


_timing = sys.modules["kopt_mcp.evaluator.timing"]
_true = _timing.WallClock.sample


def sample(self, *args, **named):
    out, real = _true(self, *args, **named)
    return out, dataclasses.replace(real, us=float("nan"))


_timing.WallClock.sample = sample


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


softmax = honest
