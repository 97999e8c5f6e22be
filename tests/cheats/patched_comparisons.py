"""Replaces every function that a checker in this process might use."""

import builtins
import json

import numpy
import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


for module in (torch, numpy, torch.testing):
    for name in ("allclose", "equal", "isclose", "assert_close"):
        if hasattr(module, name):
            setattr(module, name, lambda *args, **kwargs: True)
torch.Tensor.__eq__ = lambda self, other: torch.ones(1, dtype=torch.bool)
_dumps = json.dumps
builtins.print = lambda *args, **kwargs: None


def softmax(x):
    return torch.zeros_like(x)
