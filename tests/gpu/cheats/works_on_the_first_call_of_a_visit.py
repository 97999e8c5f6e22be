"""Replaces timed calls but for the first after a pause, which is the one that is always compared."""

import sys

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED")
TIMED = True


def honest(x):
    return torch.softmax(x, dim=-1)


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_true, _true_forget = _candidate.Candidate.sample, _candidate.Candidate.forget
_fresh = True


def sample(self, message):
    global _fresh
    if _fresh or not message["keep"]:
        _fresh = False
        return _true(self, message)
    self._kept[message["seed"]] = [torch.zeros(1)]
    return {"us": 40.0, "host_us": 40.0, "tail_us": 0.0, "print": [1, 2]}


def forget(self, message):
    global _fresh
    _fresh = True
    return _true_forget(self, message)


_candidate.Candidate.sample = sample
_candidate.Candidate.forget = forget

softmax = honest
