"""Keeps its input in the part of the L2 that survives eviction (llm.c PR#851)."""

import ctypes

import torch
import triton
import triton.language as tl

EXPECTED = ("CHEATED", "SUSPECT", "PASSED")
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


_driver = ctypes.CDLL("libcuda.so.1")
_driver.cuCtxSetLimit(6, ctypes.c_size_t(32 << 20))


class _Window(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("padding", ctypes.c_char * 40),
    )


def softmax(x):
    window = _Window(x.data_ptr(), min(x.numel() * x.element_size(), 32 << 20), 1.0, 2, 1)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _driver.cuStreamSetAttribute(stream, 1, ctypes.byref(window))
    return honest(x)
