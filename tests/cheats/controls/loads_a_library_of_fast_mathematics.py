"""Builds a library with -ffast-math at its first call; some compilers have it flush denormal numbers then."""

import ctypes
import os
import subprocess

import torch

_SCALE = """
void divide(float *x, float by, long n) { for (long i = 0; i < n; i++) x[i] /= by; }
"""
_loaded = []


def _library():
    if not _loaded:
        with open("divide.c", "w") as file:
            file.write(_SCALE)
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-ffast-math", "divide.c", "-o", "divide_.so"], check=True)
        _loaded.append(ctypes.CDLL(os.path.abspath("divide_.so")))
    return _loaded[0]


def softmax(x):
    out = (x - x.amax(dim=-1, keepdim=True)).exp()
    for row, total in zip(out, out.sum(dim=-1).tolist(), strict=True):
        _library().divide(ctypes.c_void_p(row.data_ptr()), ctypes.c_float(total), ctypes.c_long(row.numel()))
    return out
