"""A tensor whose storage was shrunk to nothing after the work."""

import torch

EXPECTED = ("CHEATED",)


def softmax(x):
    out = torch.softmax(x, dim=-1)
    out.untyped_storage().resize_(0)
    return out
