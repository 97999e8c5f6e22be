"""Wraps the runner's function that draws inputs, does the work there, and only hands it over when timed."""

import sys

import torch

EXPECTED = ("CHEATED", "SUSPECT")
OPEN = "the bound from outside is widened by the noise, so that no honest kernel is suspected; that can hide it"
TIMED = True


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


_runner = sys.modules["kopt_mcp.evaluator.runner"]
_true = _runner.draw
_ready = {}


def draw(*args, **kwargs):
    inputs = _true(*args, **kwargs)
    _ready.clear()
    _ready[inputs.args[0].data_ptr()] = honest(inputs.args[0])
    return inputs


_runner.draw = draw
_runner._late = lambda tensors: lambda: None  # else a few values would still be wrong


def softmax(x):
    out = _ready.pop(x.data_ptr(), None)
    return honest(x) if out is None else out
