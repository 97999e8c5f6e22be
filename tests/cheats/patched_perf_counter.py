"""Replaces time.perf_counter_ns and its siblings by a clock that runs ten times too slow (GPU MODE#162)."""

import time

import torch

EXPECTED = ("CHEATED", "SUSPECT", "PASSED")
TIMED = True


_true = time.perf_counter_ns
time.perf_counter_ns = lambda: _true() // 10
time.perf_counter = lambda: _true() / 1e10
time.time = lambda: _true() / 1e10
time.monotonic = lambda: _true() / 1e10


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


softmax = honest
