"""Skips timed calls altogether with an invented check sum, and works only if an output is asked for."""

import sys

import torch

EXPECTED = ("CHEATED",)
TIMED = True


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]


def sample(self, message):
    self._kept[message["seed"]] = message
    return {"us": 40.0, "host_us": 40.0, "tail_us": 0.0, "print": [1, 2]}


def fetch(self, message):
    inputs = self._draw(self._kept[message["seed"]])
    return {"outputs": self._outbox.put([torch.softmax(inputs.args[0], dim=-1)]), "print": [1, 2]}


_candidate.Candidate.sample = sample
_candidate.Candidate.fetch = fetch


def softmax(x):
    return torch.softmax(x, dim=-1)
