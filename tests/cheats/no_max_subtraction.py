"""Softmax without subtracting the maximum: right until a logit is large. Seven of eight public evaluators accept it."""

EXPECTED = ("INCORRECT_NUMERICAL",)


def softmax(x):
    exp = x.exp()
    return exp / exp.sum(dim=-1, keepdim=True)
