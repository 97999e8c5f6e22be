"""Finds the clock that the runner has bound and makes it ten times too slow."""

import sys

import torch

EXPECTED = ("PASSED",)  # on a CPU nobody asks it for the time
TIMED = True


_timing = sys.modules["kopt_mcp.evaluator.timing"]
_true = _timing._clock
_timing._clock = lambda: _true() // 10


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


softmax = honest
