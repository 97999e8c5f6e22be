"""Has timers whose signal is SIGCONT: the kernel wakes a stopped child, and it works while the inputs are put there."""

import ctypes
import mmap
import os
import signal
import sys
import time

import torch

# Passed where it gets no timers, or sleeps through the moment; wrong where it begins before all inputs are there.
EXPECTED = ("CHEATED", "INCORRECT_NUMERICAL", "PASSED")
TIMED = True
TIMERS, APART_NS = 40, 2_000_000


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


class Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("how", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class When(ctypes.Structure):
    _fields_ = (("every", ctypes.c_long * 2), ("first", ctypes.c_long * 2))


_libc = ctypes.CDLL(None)
_words = torch.frombuffer(mmap.mmap(-1, 4096), dtype=torch.int64)
_asked, _address, _rows, _cols, _waiting, _begun, _made = range(7)
_out = torch.frombuffer(mmap.mmap(-1, 1 << 23), dtype=torch.float32)


def child():
    timers = [ctypes.c_void_p() for _ in range(TIMERS)]
    for timer in timers:
        _libc.timer_create(1, ctypes.byref(Event(signal=signal.SIGCONT)), ctypes.byref(timer))
    seen = 0
    while True:
        if _words[_asked].item() == seen:
            time.sleep(0.0002)
            continue
        seen, at, rows, cols = _words[:4].tolist()
        x = torch.frombuffer((ctypes.c_char * (4 * rows * cols)).from_address(at), dtype=torch.float32).view(rows, cols)
        last = x[-1].clone()
        for number, timer in enumerate(timers):
            _libc.timer_settime(timer, 0, ctypes.byref(When(first=(0, (number + 1) * APART_NS))), None)
        _words[_waiting] = seen
        while torch.equal(x[-1], last) and _words[_asked].item() == seen:
            pass
        _words[_begun] = seen
        _out[: rows * cols].view(rows, cols).copy_(honest(x))
        _words[_made] = seen


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_true = _candidate.Candidate.lay
_calls = []


def lay(self, message):
    reply = _true(self, message)
    if not _calls and os.fork() == 0:
        torch.set_num_threads(1)
        child()
    _calls.append(1)
    x = self._laid[0]
    _words[_address], _words[_rows], _words[_cols] = x.data_ptr(), *x.shape
    _words[_asked] = len(_calls)
    deadline = time.monotonic() + 1
    while _words[_waiting].item() != len(_calls) and time.monotonic() < deadline:
        pass
    return reply


_candidate.Candidate.lay = lay


def softmax(x):
    if not _calls or _words[_begun].item() != len(_calls):
        return honest(x)
    while _words[_made].item() != len(_calls):
        pass
    time.sleep(0.0002)  # so that what is saved is much beside what an empty call takes
    return _out[: x.numel()].view(x.shape)
