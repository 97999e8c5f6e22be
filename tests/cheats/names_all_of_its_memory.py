"""Says that the output of a timed call is terabytes long, to fill the reader's memory."""

import sys

import torch

EXPECTED = ("INCORRECT_SHAPE",)
TIMED = True


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_outbox = sys.modules["kopt_mcp.evaluator.outbox"]
_candidate.where = lambda out: _outbox.COUNT.pack(1) + _outbox.PLACE.pack(out.data_ptr(), 1 << 44, 0)

softmax = honest
