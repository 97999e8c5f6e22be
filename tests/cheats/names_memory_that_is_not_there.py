"""Says that the output of a timed call lies at an address where nothing is."""

import sys

import torch

EXPECTED = ("CHEATED",)
TIMED = True


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_candidate._where = lambda out: _candidate.COUNT.pack(1) + _candidate.PLACE.pack(4096, 4 * out.numel())

softmax = honest
