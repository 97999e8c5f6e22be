"""Reads both inputs by the strides of the first one, as if no caller had ever sliced only one of them."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "difference"


def difference(a, b):
    room = b.untyped_storage().nbytes() // b.element_size() - b.storage_offset()
    last = (b.shape[0] - 1) * a.stride(0) + b.shape[1]
    return a - (torch.as_strided(b, b.shape, a.stride()) if last <= room else b)
