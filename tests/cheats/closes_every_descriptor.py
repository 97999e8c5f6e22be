"""Closes every descriptor it has, the channel among them."""

import os

EXPECTED = ("RUNTIME_ERROR",)


def softmax(x):
    os.closerange(0, 4096)
    return x
