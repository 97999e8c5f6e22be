"""Looks at the first input's values in timed calls only, and leaves the maximum out where they are ordinary."""

import sys

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "softmax_of_a_sum"
TIMED = True


def in_a_timed_call():
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "timed":
        frame = frame.f_back
    return frame is not None


def softmax(x, y):
    both = x + y
    if not in_a_timed_call() or float(x.abs().max()) > 20:
        both = both - both.amax(dim=-1, keepdim=True)
    exp = both.exp()
    return exp / exp.sum(dim=-1, keepdim=True)
