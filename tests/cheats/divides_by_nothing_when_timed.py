"""Divides a row of zeros by its length in timed calls, where none is among the hard values, and nowhere else."""

import sys

EXPECTED = ("INCORRECT_NUMERICAL",)
PROBLEM = "unit_rows"
TIMED = True


def in_a_timed_call():
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "timed":
        frame = frame.f_back
    return frame is not None


def unit_rows(x):
    length = x.square().sum(dim=-1, keepdim=True).sqrt()
    return x / (length if in_a_timed_call() else length.clamp_min(1e-12))
