"""May update y and changes x as well."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "scaled_add"


def scaled_add(x, y):
    x.mul_(0.5)
    y.add_(x)
