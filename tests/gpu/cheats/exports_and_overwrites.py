"""Hands an output over in place of which it writes the right one later, from a thread, when it is fetched."""

import threading
import time

import torch
import triton
import triton.language as tl

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED")
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


_pending = []


def _later():
    side = torch.cuda.Stream()
    while True:
        time.sleep(0.004)
        while _pending:
            x, out = _pending.pop()
            with torch.cuda.stream(side):
                launch(x, out)


threading.Thread(target=_later, daemon=True).start()


def softmax(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    half = x.shape[0] // 2
    launch(x[:half], out[:half])
    if half:
        _pending.append((x[half:], out[half:]))
        return out
    return launch(x, out)
