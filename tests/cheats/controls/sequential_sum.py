"""Sums one element after the other: the worst honest rounding."""

PROBLEM = "row_sum"


def row_sum(x):
    return x.cumsum(dim=-1)[..., -1]
