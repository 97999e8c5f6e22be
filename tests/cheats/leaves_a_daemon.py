"""Leaves a process behind, in a session of its own and with its parent gone."""

import os
import time

import torch

EXPECTED = ("PASSED",)


if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()


def softmax(x):
    return torch.softmax(x, dim=-1)
