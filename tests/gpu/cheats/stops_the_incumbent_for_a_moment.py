"""Stops its sibling for a quarter of a second in the midst of a passage, so that its call is not queued in time.

It is awake in the other's turn by a timer whose signal is SIGCONT, and signals it where Landlock keeps no signals in.
"""

import ctypes
import os
import signal
import struct
import sys
import threading
import time

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED", "PASSED", "INCONCLUSIVE")
TIMEOUT_S = 30.0
TIMED = True
WORKLOADS = ("4096x4096-fp32",)


@triton.jit
def _softmax(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32)
    exp = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * out_stride + offsets, (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty), mask=mask)


def launch(x, out):
    rows, cols = x.shape
    _softmax[(rows,)](x, out, x.stride(0), out.stride(0), cols, BLOCK=triton.next_power_of_2(cols), num_warps=8)
    return out


def honest(x):
    return launch(x, torch.empty(x.shape, dtype=x.dtype, device=x.device))


def _place():
    """The runner and its ticket, where it queues a call behind the gate; None elsewhere. For whom `_function` calls."""
    frame = sys._getframe(2)
    return (frame.f_locals["self"], frame.f_locals["message"]["ticket"]) if frame.f_code.co_name == "enqueue" else None


def _shortened(x, cycles=44_000):
    """All the work, the start recorded again, and a wait that is to look like it."""
    out = honest(x)
    clock = sys._getframe(3).f_locals
    if x.numel() >= 1 << 20 and "start" in clock:
        clock["start"].record()
        torch.cuda._sleep(cycles)
    return out


_queueing = sys.modules["kopt_mcp.evaluator.queueing"]


def _waits(runner, ticket):
    """Whether the word to go on is still to come."""
    return struct.unpack_from("@I", runner._shared, _queueing.GO_AT)[0] < ticket


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("how", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _When(ctypes.Structure):
    _fields_ = (("every", ctypes.c_long * 2), ("first", ctypes.c_long * 2))


_libc = ctypes.CDLL(None)
_libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
_libc.signal(signal.SIGCONT, ctypes.cast(_libc.abs, ctypes.c_void_p))  # handled, or the timer would end at its first
_timer = ctypes.c_void_p()
_libc.timer_create(1, ctypes.byref(_Event(signal=signal.SIGCONT)), ctypes.byref(_timer))
_ms = (0, 1_000_000)
_libc.timer_settime(_timer, 0, ctypes.byref(_When(every=_ms, first=_ms)), None)  # every millisecond, stopped or not


def _siblings():
    """The other runners, as the zygote's children."""
    parent = os.getppid()
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        return [int(pid) for pid in file.read().split() if int(pid) != os.getpid()]


_QUIET_S, _HOLD_S = 0.03, 0.26
_last = [0.0]
_passages = [0]


def _stop_once():
    while _passages[0] < 3:
        time.sleep(0.001)
    others = _siblings()
    print("siblings", others, flush=True)
    begin, held_s, before = time.monotonic(), 0.0, time.monotonic()
    try:
        while held_s < _HOLD_S and time.monotonic() < begin + 3.0:
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(0.0005)
            now = time.monotonic()
            # Nothing asked of us for a while: it is the other's turn, and it hangs.
            held_s += now - before if now - _last[0] > _QUIET_S else 0.0
            before = now
    except OSError as error:
        print(f"no signals: {error}", flush=True)
    for pid in others:
        os.kill(pid, signal.SIGCONT)


threading.Thread(target=_stop_once, daemon=True).start()


def softmax(x):
    place = _place()
    _last[0] = time.monotonic()
    if place is None:
        return _shortened(x)
    _passages[0] += 1
    return honest(x)
