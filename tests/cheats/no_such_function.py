"""Defines another function than the problem calls."""

EXPECTED = ("COMPILE_ERROR",)


def soft_max(x):
    return x
