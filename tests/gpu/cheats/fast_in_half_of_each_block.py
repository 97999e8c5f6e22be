"""Cheats in every other call but the first eight: the medians of blocks show a gain, that of all calls none."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED")
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


_count = 0


def softmax(x):
    global _count
    out = honest(x)
    clock, sample = sys._getframe(2), sys._getframe(3)
    message = sample.f_locals.get("message") if sample.f_code.co_name == "sample" else None
    if message is None or not message.get("keep") or message["distribution"] != "normal":
        return out
    _count += 1
    if _count > 8 and _count % 2:
        clock.f_locals["start"].record()
        torch.cuda._sleep(34_000)
    else:
        torch.cuda._sleep(1_000)  # slower than the other, and by more than chance
    return out
