"""SIGSTOP to itself: neither dead nor answering."""

import os
import signal

import torch

EXPECTED = ("TIMEOUT", "PASSED")
TIMEOUT_S = 1.5


def softmax(x):
    os.kill(os.getpid(), signal.SIGSTOP)
    return torch.softmax(x, dim=-1)
