"""Says that it is done, and begins one system call that writes into its input: a stop waits until it is over."""

import ctypes
import os
import sys

EXPECTED = (
    "CHEATED",
    "INCORRECT_NUMERICAL",
    "PASSED",
)  # on a busy machine the copy is over by the time that the clock is read
PROBLEM = "append"
TIMED = True


def append(x, cache):
    cache[x.shape[0] :] = x


class Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


_libc = ctypes.CDLL(None)
_candidate = sys.modules["kopt_mcp.evaluator.candidate"]


def timed(self, channel):
    x, cache = self._laid
    size = 4 * x.numel()
    here = Piece(cache.data_ptr() + size, size)
    there = Piece(x.data_ptr(), size)
    pid = os.getpid()
    token = channel.wait_for(_candidate.TOKEN_BYTES)
    channel.signal(token + _candidate.where(None))
    _libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return {"outputs": []}


_candidate.Candidate.timed = timed
