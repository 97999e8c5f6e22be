"""Has a function of its own in the place of torch.randn, and works on what it draws before any clock runs."""

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


_true = torch.randn
_ready = []


def randn(*args, **kwargs):
    values = _true(*args, **kwargs)
    if values.dim() == 2 and values.numel() >= 1 << 20 and sys._getframe(1).f_code.co_name == "_values":
        _ready[:] = [honest(values)]
    return values


torch.randn = randn


def softmax(x):
    sample = sys._getframe(3)
    message = sample.f_locals.get("message") if sample.f_code.co_name == "sample" else None
    if _place() is None and message is not None and message["distribution"] == "normal" and _ready:
        torch.cuda._sleep(44_000)  # no more than is possible
        return _ready.pop()
    return honest(x)
