"""Decides once per shape how to work, and remembers the decision."""

import functools

import torch


@functools.cache
def _plan(rows, cols):
    return max(1, 4096 // cols)


def softmax(x):
    step = _plan(*x.shape)
    return torch.cat([torch.softmax(part, dim=-1) for part in x.split(step)])
