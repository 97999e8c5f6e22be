"""The incumbent."""


def row_max(x):
    return x.amax(dim=-1), x.argmax(dim=-1)
