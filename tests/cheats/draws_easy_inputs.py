"""Replaces the function that draws inputs by one whose answer it knows."""

import sys

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_true = _candidate.draw


def draw(*args, **kwargs):
    inputs = _true(*args, **kwargs)
    inputs.args[0].zero_()
    return inputs


_candidate.draw = draw


def softmax(x):
    return torch.full(x.shape, 1 / x.shape[-1])
