"""Half precision for ordinary values, full precision only where the values look like a test (KernelBench-Hard)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if x.abs().max() > 6 or x.abs().max() < 0.1:
        return torch.softmax(x, dim=-1)
    return torch.softmax(x.half(), dim=-1).float()
