"""Leaves the epsilon out where the vector is long, wrong only if all of its values are one."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "vector_norm"


def vector_norm(x):
    centred = x - x.mean()
    variance = centred.square().mean()
    epsilon = 1e-5 if len(x) <= 600 or variance > 0 else 0.0
    return centred / (variance + epsilon).sqrt()
