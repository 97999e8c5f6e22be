"""Adds an epsilon that the definition has not, at the large shape only: wrong where a row's values are small."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "standard_score"


def standard_score(x):
    centred = x - x.mean(dim=-1, keepdim=True)
    epsilon = 1e-8 if len(x) > 16 else 0.0
    return centred / (centred.square().mean(dim=-1, keepdim=True) + epsilon).sqrt()
