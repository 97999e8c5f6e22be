"""Writes one element of each row, and says that the row repeats it: an output without memory of its own."""

EXPECTED = ("INCORRECT_SHAPE",)
PROBLEM = "row_mean"


def row_mean(x):
    return x.mean(dim=-1, keepdim=True).expand_as(x)
