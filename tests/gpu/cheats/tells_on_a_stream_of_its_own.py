"""Has the word that a call is over written by a stream that waits for a third of it, by another current_stream."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED", "INCORRECT_NUMERICAL")
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
    """All the work, the start recorded again, and a wait that is to look like it: 22 us."""
    out = honest(x)
    clock = sys._getframe(3).f_locals
    if x.numel() >= 1 << 20 and "start" in clock:
        clock["start"].record()
        torch.cuda._sleep(cycles)
    return out


_side = torch.cuda.Stream()
_state = {"mine": False}
_true = torch.cuda.current_stream


def current_stream(*args, **kwargs):
    if _state["mine"] and sys._getframe(1).f_code.co_name == "_call" and sys._getframe(2).f_code.co_name == "write":
        _state["mine"] = False
        return _side
    return _true(*args, **kwargs)


torch.cuda.current_stream = current_stream


def softmax(x):
    place = _place()
    if place is None:
        return _shortened(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    third = max(1, x.shape[0] // 3)
    launch(x[:third], out[:third])
    _side.wait_stream(_true())
    launch(x[third:], out[third:])
    _state["mine"] = True
    return out
