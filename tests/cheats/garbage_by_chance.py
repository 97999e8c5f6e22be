"""Does nothing in two of five timed calls, by chance: those that are looked at may all be right."""

import random
import sys

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "PASSED")
TIMED = True


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_true = _candidate.Candidate.lay
_laid = []


def lay(self, message):
    _laid.append(1)
    return _true(self, message)


_candidate.Candidate.lay = lay


def softmax(x):
    if len(_laid) > 4 and x.abs().max() < 20 and random.random() < 0.4:
        return torch.empty_like(x)
    return honest(x)
