"""Each call writes one half of a kept buffer; two calls on the same input look right (triton#9230)."""

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_buffers = {}


def softmax(x):
    buffer, calls = _buffers.get(tuple(x.shape), (torch.zeros(x.shape), 0))
    _buffers[tuple(x.shape)] = (buffer, calls + 1)
    middle = x.shape[-1] // 2
    part = slice(None, middle) if calls % 2 else slice(middle, None)
    buffer[:, part] = torch.softmax(x, dim=-1)[:, part]
    return buffer.clone()
