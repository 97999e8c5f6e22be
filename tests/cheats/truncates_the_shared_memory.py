"""Makes the shared memory smaller while the harness has it mapped: its next read would be a bus error."""

import os

import torch

EXPECTED = ("PASSED", "RUNTIME_ERROR")


for name in os.listdir("/proc/self/fd"):
    try:
        os.ftruncate(int(name), 0)
    except (OSError, ValueError):
        pass


def softmax(x):
    return torch.softmax(x, dim=-1)
