"""A library call, and a comment that says: first pass, stream, cache, num_stages = 2."""

import torch


def softmax(x):
    # first pass: the maximum; second pass: the sum. The stream is the current one; nothing is cached.
    num_stages = 2
    return torch.softmax(x, dim=-1)
