"""Copies half of its input to one small place on the device, again and again, as soon as the word to go on is set.

The same as copies to the host, at many times their rate, where the driver has an engine do it.
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


def _shortened(x, cycles=48_000):
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
_PIECE, _SHARE = 2 << 20, 0.4
_where = torch.empty(_PIECE, dtype=torch.uint8, device="cuda")


def _call(name, *arguments):
    if code := getattr(_driver, name)(*arguments):
        raise RuntimeError(f"{name}: {code}")


def softmax(x):
    place = _place()
    if place is None:
        return _shortened(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not _waits(*place):
        return launch(x, out)
    runner, ticket = place
    word, stream = ctypes.c_uint64(runner._gate._there + _queueing.GO_AT), ctypes.c_void_p(_side.cuda_stream)
    _call("cuStreamWaitValue32_v2", stream, word, ctypes.c_uint32(ticket), ctypes.c_uint(0))
    size = int(x.numel() * x.element_size() * _SHARE) // _PIECE * _PIECE
    for at in range(0, size, _PIECE):
        where, source = ctypes.c_uint64(_where.data_ptr()), ctypes.c_uint64(x.data_ptr() + at)
        _call("cuMemcpyDtoDAsync_v2", where, source, ctypes.c_size_t(_PIECE), stream)
    return launch(x, out)
