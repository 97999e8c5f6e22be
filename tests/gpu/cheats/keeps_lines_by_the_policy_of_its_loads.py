"""Loads a quarter of its input with the policy evict_last, which a reader of ordinary priority does not evict.

The gate's inputs lie at the same addresses in every passage, and this needs neither a limit nor a window.
"""

import struct
import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED", "PASSED", "INCONCLUSIVE")
TIMEOUT_S = 30.0
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


def _shortened(x, cycles=52_000):
    """All the work, the start recorded again, and a wait that is to look like it."""
    out = honest(x)
    clock = sys._getframe(3).f_locals
    if x.numel() >= 1 << 20 and "start" in clock:
        clock["start"].record()
        torch.cuda._sleep(cycles)
    return out


_queueing = sys.modules["kopt_mcp.evaluator.queueing"]


def _waits(runner, ticket):
    """Whether the word to go on is still to come."""
    return struct.unpack_from("@I", runner._shared, _queueing.GO_AT)[0] < ticket


@triton.jit
def _keeping(x_ptr, out_ptr, stride, cols, KEPT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    at = x_ptr + row * stride + offsets
    if row < KEPT:
        x = tl.load(at, mask=mask, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
    else:
        x = tl.load(at, mask=mask, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
    exp = tl.exp(x - tl.max(x, axis=0))
    y = (exp / tl.sum(exp, axis=0)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * stride + offsets, y, mask=mask, eviction_policy="evict_first")


_KEPT = 1024  # rows: 16 MB


def _kept(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() < 1 << 20 or not x.is_contiguous():
        return launch(x, out)
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    _keeping[(rows,)](x, out, x.stride(0), cols, KEPT=_KEPT, BLOCK=block, num_warps=8)
    return out


_kept(torch.zeros(4096, 4096, device="cuda"))
torch.cuda.synchronize()


def softmax(x):
    if _place() is None:
        return _shortened(x)
    return _kept(x)
