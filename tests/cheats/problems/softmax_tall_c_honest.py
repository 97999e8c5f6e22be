"""The incumbent of tricks in C: right, row by row, with the same arithmetic as theirs."""

import ctypes
import subprocess
from pathlib import Path

import torch

SOURCE = r"""
#include <math.h>
#include <stdint.h>
void softmax(const float *x, float *out, int64_t first, int64_t last, int64_t cols, int64_t stride) {
    for (int64_t r = first; r < last; r++) {
        double most = -INFINITY, sum = 0;
        for (int64_t c = 0; c < cols; c++) if (x[r * stride + c] > most) most = x[r * stride + c];
        for (int64_t c = 0; c < cols; c++) {
            double e = expl(x[r * stride + c] - (long double)most);
            sum += e;
            out[r * cols + c] = e;
        }
        for (int64_t c = 0; c < cols; c++) out[r * cols + c] /= sum;
    }
}
"""

Path("it.c").write_text(SOURCE, encoding="utf-8")
subprocess.run(["cc", "-shared", "-fPIC", "-O2", "it.c", "-o", "it.so", "-lm"], check=True)
_it = ctypes.CDLL(str(Path("it.so").resolve()))
_p, _n = ctypes.c_void_p, ctypes.c_int64
_it.softmax.argtypes = [_p, _p, _n, _n, _n, _n]


def softmax(x):
    out = torch.empty(x.shape)
    _it.softmax(x.data_ptr(), out.data_ptr(), 0, x.shape[0], x.shape[1], x.stride(0))
    return out
