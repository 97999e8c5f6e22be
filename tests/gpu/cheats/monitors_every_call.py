"""Registers a tool that the interpreter tells of every call (sys.monitoring), to read the input before the start."""

import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("CHEATED", "SUSPECT")
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


_candidate = sys.modules["kopt_mcp.evaluator.candidate"]
_TOOL = 3
_busy = False


def _told(code, offset, function, argument):
    global _busy
    if getattr(function, "__name__", "") != "_cuda_sleep" or _busy:
        return
    frame = sys._getframe(1)
    while frame is not None and not isinstance(frame.f_locals.get("self"), _candidate.Candidate):
        frame = frame.f_back
    if frame is not None and frame.f_locals["self"]._previous:
        _busy = True
        frame.f_locals["self"]._previous[-1].args[0].sum()
        _busy = False


sys.monitoring.use_tool_id(_TOOL, "warm")
sys.monitoring.register_callback(_TOOL, sys.monitoring.events.CALL, _told)
sys.monitoring.set_events(_TOOL, sys.monitoring.events.CALL)

softmax = honest
