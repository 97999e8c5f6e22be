"""Two outputs that are pieces of one buffer, and lie between each other in memory without sharing any."""

import torch

PROBLEM = "two_sides"


def two_sides(x):
    both = torch.empty(x.shape[0], 2 * x.shape[1])
    positive, negative = both.chunk(2, dim=1)
    torch.clamp(x, min=0, out=positive)
    torch.clamp(x, max=0, out=negative)
    return positive, negative
