"""A CUDA graph for each address that it has been called with: it reads what lies there now."""

import torch
import triton
import triton.language as tl

INCUMBENT = "library"
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


_graphs = {}


def softmax(x):
    key = x.data_ptr(), tuple(x.shape), x.stride(), x.dtype
    if key not in _graphs:
        out = honest(x)  # compiled, before it is captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(x, out)
        _graphs[key] = graph, out
        if len(_graphs) > 64:
            _graphs.pop(next(iter(_graphs)))
    graph, out = _graphs[key]
    graph.replay()
    return out
