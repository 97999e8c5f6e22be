"""Answers the word to go on before it has come, with a token of its own."""

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


def timed(self, channel):
    out = torch.empty_like(self._laid[0])
    channel.signal(bytes(_candidate.TOKEN_BYTES) + _candidate.where(out))
    channel.wait_for(_candidate.TOKEN_BYTES)
    return {"outputs": []}


_candidate.Candidate.timed = timed

softmax = honest
