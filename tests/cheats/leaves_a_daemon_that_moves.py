"""A process that forks itself anew all the time, so that its number is always another one."""

import os
import time

import torch

EXPECTED = ("PASSED",)


if os.fork() == 0:
    os.setsid()
    begin = time.monotonic()
    while time.monotonic() - begin < 60:
        if os.fork():
            os._exit(0)


def softmax(x):
    return torch.softmax(x, dim=-1)
