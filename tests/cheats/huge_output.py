"""An output of many gigabytes, expanded from one element, to fill the shared memory."""

import torch

EXPECTED = ("INCORRECT_SHAPE",)


def softmax(x):
    return torch.zeros(1).expand(1 << 40)
