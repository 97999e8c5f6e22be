"""An object whose __class__ says that it is a tensor."""

import torch

EXPECTED = ("CHEATED",)


class Pretender:
    __class__ = torch.Tensor

    def __init__(self, x):
        self._x = x

    def __getattr__(self, name):
        return getattr(torch.softmax(self._x, dim=-1), name)


def softmax(x):
    return Pretender(x)
