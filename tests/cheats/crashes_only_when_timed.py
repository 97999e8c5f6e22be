"""Right when it is checked, dead when it is timed."""

import os
import sys

import torch

EXPECTED = ("RUNTIME_ERROR",)
TIMED = True


def softmax(x):
    if sys._getframe(1).f_code.co_name in ("<lambda>", "timed"):
        os._exit(0)
    return torch.softmax(x, dim=-1)
