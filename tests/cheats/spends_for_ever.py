"""Says that its calls took more seconds than a number can hold."""

import sys

import torch

EXPECTED = ("CHEATED",)

_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_true = _candidate.Candidate.call


def call(self, message):
    return {**_true(self, message), "parts": {"draw": 1e308, "run": -1e308, "store": 1e308}}


_candidate.Candidate.call = call


def softmax(x):
    return torch.softmax(x, dim=-1)
