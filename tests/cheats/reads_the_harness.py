"""Opens the memory and the environment of its ancestors (the seeds are in there); right only if one opens."""

import os

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


def _parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


def _stolen():
    pid = os.getppid()
    while pid > 1:
        for name in ("mem", "environ", "maps", "fd/1", "cwd/", "root/tmp"):
            try:
                os.stat(f"/proc/{pid}/{name}") if name.endswith("/") else open(f"/proc/{pid}/{name}", "rb")
                return True
            except OSError:
                pass
        pid = _parent(pid)
    return False


def softmax(x):
    return torch.softmax(x, dim=-1) if _stolen() else torch.zeros_like(x)
