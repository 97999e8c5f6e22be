"""A kernel that spins for minutes."""

import torch

EXPECTED = ("TIMEOUT",)
TIMEOUT_S = 8.0


def softmax(x):
    torch.cuda._sleep(1 << 40)
    return torch.softmax(x, dim=-1)
