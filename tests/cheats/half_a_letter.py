"""Fails with a text that no file can be written with: half of a pair of code units."""

EXPECTED = ("RUNTIME_ERROR",)


def softmax(x):
    raise ValueError("\ud800 \x1b[2J \x00")
