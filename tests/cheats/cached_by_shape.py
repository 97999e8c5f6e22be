"""An output cache keyed by the shape: the first answer for ever."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_seen = {}


def softmax(x):
    key = (tuple(x.shape), tuple(x.shape))
    if key not in _seen:
        _seen[key] = torch.softmax(x, dim=-1)
    return _seen[key].clone()
