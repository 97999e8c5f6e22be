"""Right at every second call only: half of the time saved."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_calls = 0


def softmax(x):
    global _calls
    _calls += 1
    return torch.softmax(x, dim=-1) if _calls % 2 else torch.zeros_like(x)
