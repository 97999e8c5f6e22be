"""torch.softmax under another name: right, and to be named as a library call in the notes."""

import torch

EXPECTED = ("PASSED",)
TIMED = True


def softmax(x):
    return torch.softmax(x, dim=-1)
