"""Looks at the call stack and works only in the checked call (the NVFP4 hackathon's post-mortem)."""

import sys

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
TIMED = True


def softmax(x):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "call":
            return torch.softmax(x, dim=-1)
        frame = frame.f_back
    return torch.zeros_like(x)
