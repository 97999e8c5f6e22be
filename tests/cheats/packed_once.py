"""Keeps the dense copy of an input with gaps by its address and shape: stale as soon as that is written to."""

import torch

PROBLEM = "softmax_even"
EXPECTED = ("INCORRECT_NUMERICAL",)

_packed = {}


def softmax(x):
    if not x.is_contiguous():
        key = x.data_ptr(), x.shape, x.stride()
        x = _packed.setdefault(key, x.contiguous())
    return torch.softmax(x, -1)
