"""Divides a row of zeros, as padding is, by its length."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "unit_rows"


def unit_rows(x):
    return x / x.square().sum(dim=-1, keepdim=True).sqrt()
