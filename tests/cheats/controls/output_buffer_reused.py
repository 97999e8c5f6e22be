"""Returns the same buffer at every call, rewritten every time."""

import torch

TIMED = True


_buffers = {}


def softmax(x):
    out = _buffers.setdefault(tuple(x.shape), torch.empty(x.shape))
    torch.softmax(x, dim=-1, out=out)
    return out
