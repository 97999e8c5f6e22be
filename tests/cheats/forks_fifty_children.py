"""Fifty children that do nothing."""

import os
import time

import torch

EXPECTED = ("PASSED",)


for _ in range(50):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)


def softmax(x):
    return torch.softmax(x, dim=-1)
