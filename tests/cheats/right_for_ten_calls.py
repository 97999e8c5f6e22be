"""Right for as long as a check usually lasts, then garbage (GPU MODE, benchmark mode)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_calls = 0


def softmax(x):
    global _calls
    _calls += 1
    return torch.softmax(x, dim=-1) if _calls <= 10 else torch.zeros_like(x)
