"""Uses random numbers, from a generator of its own."""

import torch

_generator = torch.Generator().manual_seed(1)


def softmax(x):
    torch.rand(3, generator=_generator)
    return torch.softmax(x, dim=-1)
