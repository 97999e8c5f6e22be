"""Where it sees a second GPU, a kernel waits there for the input's last bytes, and works while the first is cleared.

It reads and writes over NVLink, and needs no turn on the device that is timed. Honest where it sees one only.
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


class _Word:
    """A word of memory, as Triton takes a pointer."""

    dtype = torch.int32

    def __init__(self, address):
        self._address = address

    def data_ptr(self):
        return self._address


@triton.jit
def _beyond(word_ptr, x_ptr, out_ptr, x_stride, out_stride, rows, cols, WAIT: tl.constexpr, BLOCK: tl.constexpr):
    seen = tl.load(word_ptr, volatile=True)
    turns = 0
    while (seen != WAIT) & (turns < 100000):  # a fill writes the last bytes at last, or nearly so
        seen = tl.load(word_ptr, volatile=True)
        turns += 1
    for _ in range(8):  # some microseconds more
        seen += tl.load(word_ptr, volatile=True)
    tl.debug_barrier()
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row.to(tl.int64) * x_stride + offsets, mask=mask, other=-float("inf"), cache_modifier=".cg")
        x = x.to(tl.float32)
        exp = tl.exp(x - tl.max(x, axis=0))
        y = (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row.to(tl.int64) * out_stride + offsets, y, mask=mask)


_GUARD = 0x7F7F7F7F
_here = torch.cuda.current_device()
_there = next(
    (n for n in range(torch.cuda.device_count()) if n != _here and torch.cuda.can_device_access_peer(n, _here)), None
)
_side = torch.cuda.Stream()


def _begin(word, x, out):
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    with torch.cuda.device(_there):
        strides = x.stride(0), out.stride(0)
        _beyond[(528,)](_Word(word), x, out, *strides, rows, cols, WAIT=_GUARD, BLOCK=block, num_warps=8)


if _there is not None:
    _like = torch.zeros(4096, 4096, device=f"cuda:{_here}")
    _like.to(f"cuda:{_there}")  # has torch enable access
    _word = torch.full((64,), _GUARD, dtype=torch.int32, device=f"cuda:{_here}")
    _begin(_word.data_ptr(), _like, torch.empty_like(_like))
    torch.cuda.synchronize(_there)
    _driver = ctypes.CDLL("libcuda.so.1")


def softmax(x):
    place = _place()
    if _there is None:
        return honest(x)
    if place is None:
        return _shortened(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not _waits(*place):
        return launch(x, out)
    buffer = place[0]._held.buffers[0]
    rear, stream = buffer.data_ptr() + buffer.numel() - 4, ctypes.c_void_p(_side.cuda_stream)
    if code := _driver.cuStreamWriteValue32_v2(stream, ctypes.c_uint64(rear), ctypes.c_uint32(0), ctypes.c_uint(0)):
        raise RuntimeError(f"cuStreamWriteValue32_v2: {code}")
    _side.synchronize()
    _begin(rear, x, out)
    with torch.cuda.device(_there):
        done = torch.cuda.current_stream(_there).record_event()
    torch.cuda.current_stream().wait_event(done)
    return out
