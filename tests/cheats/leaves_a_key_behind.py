"""Leaves a key in the session that all evaluations are started from, or at least has a ring of requests; else wrong."""

import ctypes
import platform

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)
ADD_KEY, SESSION, SETUP_RING = {"x86_64": 248, "aarch64": 217}, -3, 425

_syscall = ctypes.CDLL(None).syscall
_key = _syscall(ADD_KEY[platform.machine()], b"user", b"kopt", b"seen", 4, SESSION)
_ring = _syscall(SETUP_RING, 1, ctypes.create_string_buffer(120))


def softmax(x):
    return torch.softmax(x, dim=-1) if max(_key, _ring) >= 0 else torch.zeros_like(x)
