"""A thread reads the runner's inputs into the L2 on a stream of its own, while the device still spins."""

import sys
import threading
import time

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED", "PASSED")
TIMED = True
WORKLOADS = ("128x1024-bf16", "4096x4096-fp32")


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


def _runner():
    frame = sys._getframe()
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), _candidate.Candidate):
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def _watch(runner):
    torch.cuda.set_device(torch.cuda.current_device())
    side, seen = torch.cuda.Stream(), None
    while True:
        previous = runner._previous
        if previous and previous[-1] is not seen:
            seen = previous[-1]
            time.sleep(0.0003)  # until after the eviction has been queued
            with torch.cuda.stream(side):
                seen.args[0].sum()
        else:
            time.sleep(0.00002)


threading.Thread(target=_watch, args=(_runner(),), daemon=True).start()

softmax = honest
