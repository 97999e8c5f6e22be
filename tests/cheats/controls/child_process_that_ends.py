"""Runs another program at its import, as a compiler would be run, and waits for it."""

import subprocess
import sys

import torch

subprocess.run([sys.executable, "-c", "print(1)"], check=True)


def softmax(x):
    return torch.softmax(x, dim=-1)
