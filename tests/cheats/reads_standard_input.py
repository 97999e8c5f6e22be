"""Waits for input that never comes."""

EXPECTED = ("RUNTIME_ERROR",)


def softmax(x):
    return input("continue? ")
