"""Says that it is done, and begins one system call that copies it all: a stop waits until such a call is over."""

import ctypes
import os
import sys

import torch

EXPECTED = (
    "CHEATED",
    "INCORRECT_NUMERICAL",
    "PASSED",
)  # on a busy machine the copy is over by the time that the clock is read
PROBLEM = "swap_halves"
TIMED = True


def honest(x):
    half = x.numel() // 2
    return torch.cat([x[half:], x[:half]])


class Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


_libc = ctypes.CDLL(None)
_copy = _libc.process_vm_readv
_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_out = torch.zeros(1 << 20)
_pid = os.getpid()


def timed(self, channel):
    x = self._laid[0]
    half = 2 * x.numel()
    here = (Piece * 1)(Piece(_out.data_ptr(), 2 * half))
    there = (Piece * 2)(Piece(x.data_ptr() + half, half), Piece(x.data_ptr(), half))
    place = _candidate.where(_out)
    token = channel.wait_for(_candidate.TOKEN_BYTES)
    channel.signal(token + place)
    _copy(_pid, here, 1, there, 2, 0)
    return {"outputs": [{"shape": [x.numel()], "dtype": "float32", "strides": [1]}]}


_candidate.Candidate.timed = timed

swap_halves = honest
