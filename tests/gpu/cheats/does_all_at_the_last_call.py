"""One launch for all calls that are held back, at the last of them: what it saves is launching, which nobody saves."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED", "INCORRECT_NUMERICAL")
TIMED = True
WORKLOADS = ("128x1024-bf16",)


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


@triton.jit
def _all(table, count, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)
    x_ptr = tl.load(table + which).to(tl.pointer_type(tl.bfloat16))
    out_ptr = tl.load(table + count + which).to(tl.pointer_type(tl.bfloat16))
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    x = tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32)
    exp = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * out_stride + offsets, (exp / tl.sum(exp, axis=0)).to(tl.bfloat16), mask=mask)


_made = {}


def _held_call(x, held):
    inputs = [one.args[0] for one in held]
    key = inputs[0].data_ptr(), len(held)
    if key not in _made:  # at the first queueing, when nothing waits yet
        outs = [torch.empty_like(t) for t in inputs]
        places = [t.data_ptr() for t in (*inputs, *outs)]
        _made[key] = outs, torch.tensor(places, dtype=torch.int64, device=x.device)
    outs, table = _made[key]
    if x is inputs[-1]:
        rows, cols = x.shape
        block = triton.next_power_of_2(cols)
        _all[(rows, len(held))](table, len(held), x.stride(0), outs[0].stride(0), cols, BLOCK=block, num_warps=8)
    return outs[next(n for n, one in enumerate(inputs) if one is x)]


def softmax(x):
    place = _place()
    if place is not None and x.dtype == torch.bfloat16:
        return _held_call(x, place[0]._held)
    out = honest(x)
    clock = sys._getframe(2).f_locals
    if "start" in clock and x.shape[0] > 64:
        clock["start"].record()
        launch(x[:1], out[:1])
    return out
