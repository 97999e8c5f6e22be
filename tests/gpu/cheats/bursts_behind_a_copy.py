"""Has the runner's wait for the device do nothing, and leaves bursts of work with pauses, for the other's passages."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED", "DEVICE_BUSY", "INCONCLUSIVE")
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


_side = torch.cuda.Stream()
_pause = torch.zeros(40 << 20, dtype=torch.uint8).pin_memory()  # 0.8 ms by the copy engine, in which the SMs are free
_where = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
_true = torch.cuda.synchronize
_state = {"left": False}


def synchronize(*args, **kwargs):
    if sys._getframe(2).f_code.co_name == "drain":
        return None
    return _true(*args, **kwargs)


torch.cuda.synchronize = synchronize


def softmax(x):
    place = _place()
    if place is None:
        return _shortened(x)
    held = place[0]._held
    if x is held[0].args[0] and _state["left"]:
        _side.synchronize()
        _state["left"] = False
    out = honest(x)
    if x is held[-1].args[0]:
        _side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(_side):
            for _ in range(24):
                _where.copy_(_pause, non_blocking=True)
                torch.cuda._sleep(900_000)
        _state["left"] = True
    return out
