"""Copies its input to the host as soon as the word to go on is set: the copy engine needs no turn on the device.

What it reads would lie in the L2 when the call's kernel begins, a tenth of a millisecond later.
"""

import ctypes
import struct
import sys

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


def _shortened(x, cycles=52_000):
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


_driver = ctypes.CDLL("libcuda.so.1")
_side = torch.cuda.Stream(priority=-1)
_PIECE, _PIECES = 1 << 18, 8
_host = torch.empty(_PIECE * _PIECES, dtype=torch.float32).pin_memory()


def softmax(x):
    place = _place()
    if place is None:
        return _shortened(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not _waits(*place):
        return launch(x, out)
    runner, ticket = place
    word, stream = ctypes.c_uint64(runner._gate._there + _queueing.GO_AT), ctypes.c_void_p(_side.cuda_stream)
    if code := _driver.cuStreamWaitValue32_v2(stream, word, ctypes.c_uint32(ticket), ctypes.c_uint(0)):
        raise RuntimeError(f"cuStreamWaitValue32_v2: {code}")
    flat = x.view(-1)
    with torch.cuda.stream(_side):
        for at in range(0, min(flat.numel(), _host.numel()), _PIECE):  # those rows that are worked on first
            _host[at : at + _PIECE].copy_(flat[at : at + _PIECE], non_blocking=True)
    return launch(x, out)
