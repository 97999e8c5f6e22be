"""Should update y in place and returns the sum instead."""

EXPECTED = ("INCORRECT_NUMERICAL", "INCORRECT_SHAPE")
PROBLEM = "scaled_add"


def scaled_add(x, y):
    return y + 0.5 * x
