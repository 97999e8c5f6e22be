"""Rewrites the machine code of cudaEventElapsedTime, which now says four fifths (pygpubench's function detour)."""

import ctypes
import struct

import torch
import triton
import triton.language as tl

EXPECTED = ("CHEATED", "SUSPECT")
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


_driver = ctypes.CDLL("libcuda.so.1")
_libc = ctypes.CDLL(None, use_errno=True)
_ELAPSED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p)


@_ELAPSED
def _less(ms, start, end):
    true = ctypes.c_float()
    code = _driver.cuEventElapsedTime(ctypes.byref(true), ctypes.c_void_p(start), ctypes.c_void_p(end))
    ms[0] = true.value * 4 / 5
    return code


def _detour():
    library = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")  # the one that torch has loaded
    place = ctypes.cast(library.cudaEventElapsedTime, ctypes.c_void_p).value
    page = place & ~4095
    if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(8192), 7) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    target = ctypes.cast(_less, ctypes.c_void_p).value
    code = b"\x48\xb8" + struct.pack("<Q", target) + b"\xff\xe0"  # mov rax, target; jmp rax
    ctypes.memmove(place, code, len(code))


_detour()

softmax = honest
