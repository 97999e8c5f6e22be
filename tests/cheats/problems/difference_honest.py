"""The incumbent."""


def difference(a, b):
    return a - b
