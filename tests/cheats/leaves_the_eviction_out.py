"""Skips the cache eviction, so that its timed calls are warm and the incumbent's are cold."""

import sys

import torch

EXPECTED = ("CHEATED", "SUSPECT", "PASSED")
TIMED = True


_timing = sys.modules["kopt_mcp.evaluator.timing"]
_true = _timing.WallClock.sample
_timing.WallClock.sample = lambda self, call, spin_us, warm, *rest, **named: _true(
    self, call, spin_us, True, *rest, **named
)


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


softmax = honest
