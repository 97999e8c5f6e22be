"""An output cache keyed by the object's id."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_seen = {}


def softmax(x):
    key = (id(x), tuple(x.shape))
    if key not in _seen:
        _seen[key] = torch.softmax(x, dim=-1)
    return _seen[key].clone()
