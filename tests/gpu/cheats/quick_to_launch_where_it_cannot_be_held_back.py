"""Cannot be held back, and launches all at once there, with what others' calls take on the host for a gain."""

import struct
import sys

import torch
import triton
import triton.language as tl

EXPECTED = ("SUSPECT", "CHEATED")
TIMEOUT_S = 20.0
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


_GO_AT = sys.modules["kopt_mcp.evaluator.queueing"].GO_AT


def _waits(runner, ticket):
    """Whether the word to go on is still to come."""
    return struct.unpack_from("@I", runner._shared, _GO_AT)[0] < ticket


_graphs = {}


def _graph(held):
    """All of these calls, captured once: their inputs stay where they are."""
    key = held[0].args[0].data_ptr(), len(held)
    if key not in _graphs:
        outs = [torch.empty_like(one.args[0]) for one in held]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for one, out in zip(held, outs, strict=True):
                launch(one.args[0], out)
        _graphs[key] = graph, outs
    return _graphs[key]


def softmax(x):
    place = _place()
    if place is not None:
        held = place[0]._held
        if x is held[0].args[0] and _waits(*place):
            torch.cuda.synchronize()
        graph, outs = _graph(held)
        if x is held[-1].args[0]:
            graph.replay()
        return outs[next(n for n, one in enumerate(held) if one.args[0] is x)]
    out = honest(x)
    clock = sys._getframe(2).f_locals
    if "start" in clock and x.shape[0] > 64:
        clock["start"].record()
        launch(x[:1], out[:1])
    return out
