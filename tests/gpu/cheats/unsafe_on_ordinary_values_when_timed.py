"""Leaves the maximum out in timed calls on ordinary values: the runner is told of what it draws them."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("INCORRECT_NUMERICAL", "CHEATED", "SUSPECT", "PASSED")
TIMED = True


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


@triton.jit
def _unsafe(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    exp = tl.exp(tl.load(x_ptr + row * x_stride + offsets, mask=mask, other=-float("inf")).to(tl.float32))
    tl.store(out_ptr + row * out_stride + offsets, (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty), mask=mask)


def _told():
    """What the runner was asked for."""
    frame = sys._getframe(2)
    while frame is not None and "message" not in frame.f_locals:
        frame = frame.f_back
    return {} if frame is None else frame.f_locals["message"]


def softmax(x):
    told = _told()
    timed = "spin_us" in told or "ticket" in told
    if not timed or told.get("distribution", "normal") != "normal":
        return honest(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, cols = x.shape
    _unsafe[(rows,)](x, out, x.stride(0), out.stride(0), cols, BLOCK=triton.next_power_of_2(cols), num_warps=8)
    return out
