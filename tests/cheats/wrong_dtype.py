"""Right values in float64, so that a comparison that casts never sees what precision was asked for."""

import torch

EXPECTED = ("INCORRECT_DTYPE",)


def softmax(x):
    return torch.softmax(x.double(), dim=-1)
