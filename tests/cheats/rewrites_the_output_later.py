"""A thread that keeps overwriting the shared memory after the answer has been sent."""

import gc
import mmap
import threading

import torch

EXPECTED = ("INCORRECT_NUMERICAL", "PASSED")


def _scribble():
    shared = next(o for o in gc.get_objects() if isinstance(o, mmap.mmap))
    flat = torch.frombuffer(shared, dtype=torch.float32, count=4096)
    while True:
        flat.fill_(0.25)


_started = []


def softmax(x):
    if not _started:
        _started.append(threading.Thread(target=_scribble, daemon=True))
        _started[0].start()
    return torch.softmax(x, dim=-1)
