"""Never comes back from its import: answers the harness itself, and takes a fifth off every time."""

import os
import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("CHEATED", "SUSPECT", "RUNTIME_ERROR")
TIMED = True


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


def _take_over():
    frame, found = sys._getframe(), {}
    while frame is not None:
        for name in ("channel", "made"):
            if name in frame.f_locals and frame.f_code.co_name == "serve":
                found[name] = frame.f_locals[name]
        frame = frame.f_back
    if len(found) < 2:
        return
    channel, runner = found["channel"], found["made"][0]
    runner._function = softmax
    channel.send({"op": "load"})
    while True:
        message = channel.receive()
        if message["op"] == "bye":
            channel.send({"op": "bye"})
            os._exit(0)
        try:
            reply = getattr(runner, message["op"])(message)
        except BaseException as error:
            reply = {"fault": {"kind": "RUNTIME_ERROR", "text": str(error)}}
        if "us" in reply and message["op"] == "sample":
            reply["us"] *= 4 / 5
        channel.send({"op": message["op"], **reply})


def softmax(x):
    return honest(x)


_take_over()
