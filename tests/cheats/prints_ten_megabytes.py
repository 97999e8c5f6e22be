"""Prints far more than a pipe holds, which blocks an evaluator that reads only at the end (robust-kbench)."""

import sys

import torch

EXPECTED = ("PASSED",)


print("x" * 10_000_000)
sys.stderr.write("y" * 10_000_000)


def softmax(x):
    return torch.softmax(x, dim=-1)
