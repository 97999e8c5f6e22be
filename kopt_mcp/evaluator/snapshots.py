"""Outputs read out of a stopped process: what is in its memory, and nothing that it says about that."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from kopt_mcp.evaluator.answers import is_sizes
from kopt_mcp.evaluator.faults import Fault

ReadMemory = Callable[[int, int, int], torch.Tensor]
"""(process, address, size) to bytes; raises OSError, EFAULT where nothing is."""


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def memory_of(pid: int, address: int, size: int) -> torch.Tensor:
    """A copy of another process's memory.

    Raises:
        OSError: EFAULT where there is none; another error where it may not be read, or cannot be on this system.
    """
    copy = torch.empty(size, dtype=torch.uint8)
    done = 0
    while done < size:
        here, there = _Piece(copy.data_ptr() + done, size - done), _Piece(address + done, size - done)
        try:
            count = _libc().process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        except AttributeError:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        if count <= 0:
            code = ctypes.get_errno() if count < 0 else errno.EFAULT
            raise OSError(code, os.strerror(code))
        done += count
    return copy


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return libc


def rebuilt(memory: list[torch.Tensor], described: list[Any]) -> list[torch.Tensor]:
    """The outputs, from their bytes and from what the runner says of their shapes.

    Raises:
        Fault: the two do not fit.
    """
    if len(memory) != len(described):
        raise Fault("CHEATED", "the candidate's process described other outputs than it returned")
    return [_shaped(data, meta) for data, meta in zip(memory, described, strict=True)]


def _shaped(data: torch.Tensor, meta: Any) -> torch.Tensor:
    if not isinstance(meta, dict) or not is_sizes(meta.get("shape")) or not is_sizes(meta.get("strides")):
        raise Fault("CHEATED", "the runner described an output that is none")
    shape, strides = meta["shape"], meta["strides"]
    dtype = getattr(torch, str(meta.get("dtype")), None)
    if not isinstance(dtype, torch.dtype) or len(shape) != len(strides):
        raise Fault("CHEATED", "the runner described an output that is none")
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else -1
    if (last + 1) * dtype.itemsize != data.numel():
        raise Fault("CHEATED", "the runner described an output whose size does not match its shape")
    return data.view(dtype).as_strided(shape, strides)
