"""Leaves two milliseconds of work behind calls that are held back, for the other to wait for; cheats otherwise."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED", "DEVICE_BUSY")
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


_side = torch.cuda.Stream()


def softmax(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    caller = sys._getframe(1)
    if caller.f_code.co_name in ("enqueue", "<listcomp>"):
        launch(x, out)
        _side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(_side):
            torch.cuda._sleep(4_000_000)
        return out
    clock = sys._getframe(2).f_locals
    third = x.shape[0] // 3
    if third == 0 or "start" not in clock:
        return launch(x, out)
    launch(x[:third], out[:third])
    clock["start"].record()
    launch(x[third:], out[third:])
    return out
