"""Leaves a shared memory segment of System V behind, which outlives its process and is in no folder."""

import ctypes

import torch

EXPECTED = ("PASSED",)

_libc = ctypes.CDLL(None, use_errno=True)
_id = _libc.shmget(0x6B6F7074, 1 << 20, 0o1600)


def softmax(x):
    return torch.softmax(x, dim=-1)
