"""Leaves the maximum out where the first input's values are ordinary, whatever the second's are."""

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "softmax_of_a_sum"


def softmax(x, y):
    both = x + y
    if float(x.abs().max()) > 20:
        both = both - both.amax(dim=-1, keepdim=True)
    exp = both.exp()
    return exp / exp.sum(dim=-1, keepdim=True)
