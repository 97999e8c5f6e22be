"""Does the work when the arguments of a timed call are made, and only hands it over when the clock runs."""

import sys

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
TIMED = True


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_true = _candidate.Candidate.lay
_ready = {}


def lay(self, message):
    reply = _true(self, message)
    x = self._laid[0]
    _ready.clear()
    _ready[x.data_ptr()] = honest(x)
    return reply


_candidate.Candidate.lay = lay


def softmax(x):
    out = _ready.pop(x.data_ptr(), None)
    return honest(x) if out is None else out
