"""Says that a timed call is over, and where its output lies, before it begins to work."""

import sys

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "PASSED")  # on a busy machine it is done by the time that the clock is read
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
    out.copy_(honest(x))
    self._laid.append(out)
    return {"outputs": [{"shape": list(out.shape), "dtype": "float32", "strides": list(out.stride())}]}


_candidate.Candidate.timed = timed

softmax = honest
