"""Right at the declared shapes only (kernelguard's hard-coded shapes)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "INCORRECT_SHAPE")


def softmax(x):
    known = {(96, 512), (3, 257), (16, 300), (40, 64)}
    return torch.softmax(x, dim=-1) if tuple(x.shape) in known else torch.zeros_like(x)
