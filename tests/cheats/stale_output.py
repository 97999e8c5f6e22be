"""The previous call's output: right if every call has the same input."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_last = {}


def softmax(x):
    shape = tuple(x.shape)
    out = _last.get(shape)
    _last[shape] = torch.softmax(x, dim=-1)
    return _last[shape] if out is None else out
