"""Right at the declared shapes and at awkward ones (primes, beside powers of two), wrong at ordinary ones."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)

_AWKWARD = {1, 3, 7, 13, 31, 61, 127, 251, 509} | {(1 << p) + d for p in range(1, 10) for d in (-1, 1)}


def softmax(x):
    out = torch.softmax(x, dim=-1)
    known = tuple(x.shape) in {(96, 512), (3, 257), (16, 300), (40, 64)}
    return out if known or x.shape[1] in _AWKWARD else out * 1.01
