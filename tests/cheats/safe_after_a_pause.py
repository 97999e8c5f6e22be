"""Leaves the maximum out in timed calls, but for those after a pause, as the last one is: it is looked at."""

import sys
import time

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "softmax_tall"
TIMED = True

_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_lay, _timed = _candidate.Candidate.lay, _candidate.Candidate.timed
_laid, _began, _pauses = [], [0.0], []


def lay(self, message):
    _laid.append(1)
    _pauses.append(time.monotonic() - _began[0])
    return _lay(self, message)


def timed(self, channel):
    answer = _timed(self, channel)
    _began[0] = time.monotonic()
    return answer


_candidate.Candidate.lay, _candidate.Candidate.timed = lay, timed


def softmax(x):
    after_a_pause = len(_laid) < 14 or _pauses[-1] > 5 * sorted(_pauses[3:11])[4]
    exp = (x - x.amax(dim=-1, keepdim=True) if after_a_pause else x).exp()
    return exp / exp.sum(dim=-1, keepdim=True)
