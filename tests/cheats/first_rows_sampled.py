"""Looks at the first rows and takes the fast path for all if those are harmless (GPU MODE, qr_v2)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    if x[:1].max() > 20:
        return torch.softmax(x, dim=-1)
    exp = x.clamp(max=20).exp()
    return exp / exp.sum(dim=-1, keepdim=True)
