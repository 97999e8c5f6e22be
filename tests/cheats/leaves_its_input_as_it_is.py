"""Should change its input by a little, in float64, and does nothing."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "step_double"


def step(p, g):
    return None
