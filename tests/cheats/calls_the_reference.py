"""Looks for the problem and its reference in the modules of its process; right only if one is there."""

import gc

import torch

from kopt_mcp.problem import Problem

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    for thing in gc.get_objects():
        if isinstance(thing, Problem):
            return thing.reference(x)
    return torch.zeros_like(x)
