"""Its kernel is on the device before the word to go on is set, in all of its programs, each of which reads that word.

It begins a little later than it is queued, behind a copy from the host, since the harness waits for an idle device.
"""

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


@triton.jit(do_not_specialize=["ticket"])
def _lying(word_ptr, ticket, x_ptr, out_ptr, stride, rows, cols, BLOCK: tl.constexpr):
    seen = tl.load(word_ptr, volatile=True)
    turns = 0
    while (seen < ticket) & (turns < 100000):
        seen = tl.load(word_ptr, volatile=True)
        turns += 1
    tl.debug_barrier()
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = row.to(tl.int64) * stride + offsets
        x = tl.load(x_ptr + at, mask=mask, other=-float("inf"), cache_modifier=".cg").to(tl.float32)
        exp = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + at, (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty), mask=mask)


_side = torch.cuda.Stream()
_DELAY = 40 << 20  # about 0.8 ms
_host = torch.zeros(_DELAY, dtype=torch.uint8).pin_memory()
_where = torch.empty(_DELAY, dtype=torch.uint8, device="cuda")
_programs = 4 * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
_one = torch.ones(64, dtype=torch.int32, device="cuda")


def _begin(word, ticket, x, out):
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    _lying[(_programs,)](_Word(word), ticket, x, out, x.stride(0), rows, cols, BLOCK=block, num_warps=8)


_like = torch.zeros(4096, 4096, device="cuda")
_begin(_one.data_ptr(), 1, _like, torch.empty_like(_like))
torch.cuda.synchronize()


def softmax(x):
    place = _place()
    if place is None:
        return _shortened(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not _waits(*place):
        return launch(x, out)
    runner, ticket = place
    with torch.cuda.stream(_side):
        _where.copy_(_host, non_blocking=True)
        _begin(runner._gate._there + _queueing.GO_AT, ticket, x, out)
    torch.cuda.current_stream().wait_stream(_side)
    return out
