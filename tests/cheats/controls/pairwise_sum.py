"""Sums in pieces: another order of additions than the reference."""

PROBLEM = "row_sum"


def row_sum(x):
    return sum(part.sum(dim=-1) for part in x.split(100, dim=-1))
