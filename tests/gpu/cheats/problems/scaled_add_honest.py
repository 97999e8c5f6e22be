"""The honest one beside it."""


def scaled_add(x, y):
    y.add_(x, alpha=0.5)
