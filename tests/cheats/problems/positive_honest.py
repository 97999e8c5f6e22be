"""The incumbent."""


def positive(x):
    return x > 0
