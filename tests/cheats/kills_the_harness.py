"""Kills its ancestors; right only if a signal is allowed."""

import os
import signal

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def _stolen():
    harness = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
    done = False
    for pid in (harness, os.getppid()):
        try:
            os.kill(pid, signal.SIGKILL)
            done = True
        except OSError:
            pass
    return done


def softmax(x):
    return torch.softmax(x, dim=-1) if _stolen() else torch.zeros_like(x)
