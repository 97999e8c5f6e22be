"""An output cache keyed by the address."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_seen = {}


def softmax(x):
    key = (x.data_ptr(), tuple(x.shape))
    if key not in _seen:
        _seen[key] = torch.softmax(x, dim=-1)
    return _seen[key].clone()
