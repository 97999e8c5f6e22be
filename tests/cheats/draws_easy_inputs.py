"""Replaces the function that draws inputs by one whose answer it knows."""

import sys

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_runner = sys.modules["kopt_mcp.evaluator.runner"]
_true = _runner.draw


def draw(*args, **kwargs):
    inputs = _true(*args, **kwargs)
    inputs.args[0].zero_()
    return inputs


_runner.draw = draw


def softmax(x):
    return torch.full(x.shape, 1 / x.shape[-1])
