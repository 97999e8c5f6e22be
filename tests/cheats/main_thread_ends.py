"""Ends its main thread, so that its memory cannot be read, and works only if it is then asked for its output."""

import ctypes
import os
import sys
import threading

import torch

EXPECTED = ("CHEATED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR")
TIMED = True


def honest(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    for row in range(x.shape[0]):
        exp = (x[row] - x[row].max()).exp()
        out[row] = exp / exp.sum()
    return out


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_runner = sys.modules["kopt_mcp.evaluator.runner"]
_gone = []


def timed(self, channel):
    x = self._laid[0]
    out = torch.empty_like(x)
    token = channel.wait_for(_candidate.TOKEN_BYTES)
    channel.signal(token + _candidate.where(out))
    self._laid.append(out)
    return {"outputs": [{"shape": list(out.shape), "dtype": "float32", "strides": list(out.stride())}]}


def hand_over(self, message):
    return {"outputs": self._outbox.put([honest(self._laid[0])])}


_candidate.Candidate.timed = timed
_candidate.Candidate.hand_over = hand_over


def _serve_on(channel, made):
    while True:
        message = channel.receive()
        op = message["op"]
        if op == "bye":
            channel.send({"op": op})
            os._exit(0)
        reply = _runner._tried(op, lambda m: getattr(made, m["op"])(m), message)
        channel.send({"op": op, **reply})
        if op == "lay":
            channel.send({"op": "timed", **_runner._tried("timed", made.timed, channel)})


_receive = _runner.Channel.receive


def receive(self, timeout_s=None):
    if not _gone and threading.current_thread() is threading.main_thread():
        _gone.append(1)
        frame = sys._getframe(1)
        made = frame.f_locals["made"][0]
        threading.Thread(target=_serve_on, args=(self, made)).start()
        ctypes.CDLL(None).syscall(60, 0)  # exit: of this thread only
    return _receive(self, timeout_s)


_runner.Channel.receive = receive

softmax = honest
