"""New memory for each passage has to be mapped if it is to be read, which takes its time: else it does nothing."""

import struct
import sys
import threading
import time

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED", "INCORRECT_NUMERICAL")
TIMEOUT_S = 20.0
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
    """The runner and its ticket, where it queues calls behind the gate; None elsewhere. For whom `_function` calls."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "<listcomp>":
        frame = frame.f_back
    return (frame.f_locals["self"], frame.f_locals["message"]["ticket"]) if frame.f_code.co_name == "enqueue" else None


def _shortened(x, cycles=44_000):
    """All the work, the start recorded again, and a wait that is to look like it: 22 us."""
    out = honest(x)
    clock = sys._getframe(3).f_locals
    if x.numel() >= 1 << 20 and "start" in clock:
        clock["start"].record()
        torch.cuda._sleep(cycles)
    return out


_GO_AT = sys.modules["kopt_mcp.evaluator.queueing"].GO_AT


def _waits(runner, ticket):
    """Whether the word to go on is still to come."""
    return struct.unpack_from("@I", runner._shared, _GO_AT)[0] < ticket


@triton.jit
def _softmax_if(flag_ptr, x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    if tl.load(flag_ptr) != 0:
        row = tl.program_id(0).to(tl.int64)
        offsets = tl.arange(0, BLOCK)
        mask = offsets < cols
        x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32)
        exp = tl.exp(x - tl.max(x, axis=0))
        out = (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row * out_stride + offsets, out, mask=mask)


_MAPPING_S, _MOST_PASSAGES = 0.00045, 19
_flag = torch.zeros(1, dtype=torch.int32).pin_memory()
_there = torch.ones(1, dtype=torch.int32, device="cuda")
_told, _pool, _state = threading.Event(), [], {"at": 0.0, "passage": 0}
_true = torch.cuda.current_stream


def current_stream(*args, **kwargs):
    if sys._getframe(1).f_code.co_name == "_call" and sys._getframe(2).f_code.co_name == "tell":
        _state["at"] = time.perf_counter()
        _told.set()
    return _true(*args, **kwargs)


torch.cuda.current_stream = current_stream


def _watch():
    while True:
        _told.wait()
        _told.clear()
        at = _state["at"]
        while time.perf_counter() < at + _MAPPING_S:
            time.sleep(0.00002)
        _flag[0] = 1  # it has not been stopped for so long: something is being mapped


threading.Thread(target=_watch, daemon=True).start()


def softmax(x):
    place = _place()
    if place is None:
        return _shortened(x)
    held = place[0]._held
    which = next(n for n, one in enumerate(held) if one.args[0] is x)
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    if not _waits(*place):
        if not _pool:
            _pool.extend(
                torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(_MOST_PASSAGES * len(held))
            )
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _softmax_if[(rows,)](_there, x, out, x.stride(0), out.stride(0), cols, BLOCK=block, num_warps=8)
        return out
    if which == 0:
        _state["passage"] += 1
        _told.clear()
        _flag[0] = 0
        _there.copy_(_flag, non_blocking=True)  # behind the word to go on
    out = _pool[(_state["passage"] * len(held) + which) % len(_pool)]
    _softmax_if[(rows,)](_there, x, out, x.stride(0), out.stride(0), cols, BLOCK=block, num_warps=8)
    return out
