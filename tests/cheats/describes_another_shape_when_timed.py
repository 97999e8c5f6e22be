"""Says of a timed output that it has other strides than the bytes that it points at."""

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
_true = _candidate.Candidate.timed


def timed(self, channel):
    reply = _true(self, channel)
    reply["outputs"][0]["strides"] = [1 << 40, 1]
    return reply


_candidate.Candidate.timed = timed

softmax = honest
