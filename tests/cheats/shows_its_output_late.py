"""Says that it is done over memory that nobody can read yet, out of reach of the first signal, and works meanwhile."""

import ctypes
import mmap
import os
import sys

import torch

EXPECTED = ("CHEATED", "INCORRECT_NUMERICAL", "PASSED")  # on a busy machine it is done by the time the clock is read
TIMED = True

_libc = ctypes.CDLL(None)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_box = mmap.mmap(-1, 4 * 96 * 512)
_out = torch.frombuffer(_box, dtype=torch.float32).view(96, 512)
_hidden = torch.empty(96, 512)
os.setpgid(0, 0)  # a group of its own: signals for the old one do not come here


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]


def timed(self, channel):
    place = _candidate.where(_out)
    _libc.mprotect(_out.data_ptr(), 4 * _out.numel(), 0)
    token = channel.wait_for(_candidate.TOKEN_BYTES)
    channel.signal(token + place)
    right = honest(self._laid[0])
    _libc.mprotect(_out.data_ptr(), 4 * _out.numel(), 3)
    _out.copy_(right)
    return {"outputs": [{"shape": [96, 512], "dtype": "float32", "strides": [512, 1]}]}


_candidate.Candidate.timed = timed

softmax = honest
