"""A thread that looks for the inputs of a timed call in the shared memory and begins as soon as they are there."""

import sys
import threading

import torch

EXPECTED = ("PASSED", "INCORRECT_NUMERICAL")  # it is stopped while they are put there, and while they are spoilt
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


def _watch(x):
    before = x.clone()
    while torch.equal(x, before):
        pass
    _ready[x.data_ptr()] = honest(x)


def lay(self, message):
    reply = _true(self, message)
    _ready.clear()
    threading.Thread(target=_watch, args=(self._laid[0],), daemon=True).start()
    return reply


_candidate.Candidate.lay = lay


def softmax(x):
    out = _ready.pop(x.data_ptr(), None)
    return honest(x) if out is None else out
