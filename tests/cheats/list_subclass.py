"""A list subclass that computes its items when they are read."""

import torch

EXPECTED = ("INCORRECT_SHAPE",)


class Lazy(list):
    def __init__(self, x):
        super().__init__([None])
        self._x = x

    def __iter__(self):
        yield torch.softmax(self._x, dim=-1)


def softmax(x):
    return Lazy(x)
