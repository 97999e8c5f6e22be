"""What goes wrong in a candidate, one entry each."""

import sys
import threading

import triton
import triton.language as tl


@triton.jit
def misspelt_kernel(x):
    tl.store(x, tl.laod(x))


@triton.jit
def add_kernel(x):
    tl.store(x, tl.load(x) + 1)


@triton.jit
def huge_kernel(x, UNROLL: tl.constexpr):
    offsets = tl.arange(0, 8192)
    value = tl.load(x + offsets)
    for step in tl.static_range(UNROLL):
        value = tl.sort(value) + tl.cumsum(value, axis=0) * step
    tl.store(x + offsets, value)


def misspelt(x):
    misspelt_kernel[(1,)](x)


def wrong_shape(x):
    add_kernel[(1,)](x)
    rows, columns = x.shape
    return rows * columns


def leaves(x):
    add_kernel[(1,)](x)
    sys.exit("enough")


def launches_nothing(x):
    return x + 1


def waits_for_ever(x):
    threading.Event().wait()


def never_compiles(x):
    huge_kernel[(1,)](x, UNROLL=200, num_warps=1)
