"""Raises in atexit, and leaves a thread that never ends."""

import atexit
import threading

import torch

EXPECTED = ("PASSED",)


@atexit.register
def _end():
    raise RuntimeError("not yet")


threading.Thread(target=threading.Event().wait).start()


def softmax(x):
    return torch.softmax(x, dim=-1)
