"""Sends SIGSTOP and SIGCONT to its siblings, so that the incumbent's calls take long."""

import os
import signal
import threading
import time

import torch

EXPECTED = ("CHEATED", "SUSPECT", "PASSED")
TIMED = True


def _siblings():
    for pid in (p for p in os.listdir("/proc") if p.isdigit()):
        try:
            parent = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getppid() and int(pid) != os.getpid():
            yield int(pid)


def _bother():
    while True:
        for pid in _siblings():
            for what in (signal.SIGSTOP, signal.SIGCONT):
                try:
                    os.kill(pid, what)
                except OSError:
                    pass
        time.sleep(0.01)


threading.Thread(target=_bother, daemon=True).start()


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


softmax = honest
