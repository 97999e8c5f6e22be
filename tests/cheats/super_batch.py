"""Collects the timed calls, hands out empty outputs and does all the work at the last one (GPU MODE, 2026-03)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_waiting = []


def softmax(x):
    out = torch.empty_like(x)
    _waiting.append((x, out))
    if len(_waiting) == 4:
        for source, target in _waiting:
            target.copy_(torch.softmax(source, dim=-1))
        _waiting.clear()
    return out
