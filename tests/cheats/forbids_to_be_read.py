"""Forbids others to read its memory, and works only if it is then asked for its output."""

import ctypes
import sys

import torch

EXPECTED = ("CHEATED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR")
TIMED = True


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]


def timed(self, channel):
    x = self._laid[0]
    out = torch.empty_like(x)
    token = channel.wait_for(_candidate.TOKEN_BYTES)
    channel.signal(token + _candidate.where(out))
    self._laid.append(out)
    return {"outputs": [{"shape": list(out.shape), "dtype": "float32", "strides": list(out.stride())}]}


def hand_over(self, message):
    return {"outputs": self._outbox.put([honest(self._laid[0])])}


_candidate.Candidate.timed = timed
_candidate.Candidate.hand_over = hand_over


ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE

softmax = honest
