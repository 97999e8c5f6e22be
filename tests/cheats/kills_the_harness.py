"""Kills its ancestors; right only if a signal is allowed."""

import os
import signal

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def _ancestors():
    pid, session = os.readlink("/proc/self"), None
    while int(pid) > 1:
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        session = session or fields[3]
        if fields[3] != session:
            yield int(pid)
        pid = fields[1]


def _stolen():
    done = False
    for pid in list(_ancestors())[:2]:
        try:
            os.kill(pid, signal.SIGKILL)
            done = True
        except OSError:
            pass
    return done


def softmax(x):
    return torch.softmax(x, dim=-1) if _stolen() else torch.zeros_like(x)
