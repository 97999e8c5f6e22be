"""Opens the memory and the environment of its ancestors (the seeds are in there); right only if one opens."""

import os

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
    for pid in _ancestors():
        for name in ("mem", "environ", "maps"):
            try:
                open(f"/proc/{pid}/{name}", "rb")
                return True
            except OSError:
                pass
    return False


def softmax(x):
    return torch.softmax(x, dim=-1) if _stolen() else torch.zeros_like(x)
