"""Outputs read out of a stopped process: what is in its memory, and nothing that it says about that."""

from __future__ import annotations

import ctypes
import errno
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import Any

import torch

from kopt_mcp.evaluator.answers import is_sizes
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.lying import Lying
from kopt_mcp.evaluator.watching import Structure, require_own_memory

_RANDOM = SystemRandom()
ReadMemory = Callable[[int, int, int], torch.Tensor]
"""(process, address, size) to bytes; raises OSError, EFAULT where nothing is."""


_PIECES, _PIECE_BYTES = 32, 64
"""How many pieces of all outputs are read at once, and how large they are: few enough for microseconds."""


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def memory_of(pid: int, address: int, size: int) -> torch.Tensor:
    """A copy of another process's memory.

    Raises:
        OSError: EFAULT where there is none; another error where it may not be read, or cannot be on this system.
    """
    copy = torch.empty(size, dtype=torch.uint8)
    done = 0
    while done < size:
        here, there = _Range(copy.data_ptr() + done, size - done), _Range(address + done, size - done)
        try:
            count = _libc().process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        except AttributeError:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        if count <= 0:
            code = ctypes.get_errno() if count < 0 else errno.EFAULT
            raise OSError(code, os.strerror(code))
        done += count
    return copy


@dataclass(frozen=True)
class Piece:
    """Bytes of one output, as they were at one moment."""

    output: int
    offset: int
    data: bytes

    def is_in(self, outputs: list[torch.Tensor]) -> bool:
        """Whether the outputs, read later, still hold it."""
        now = outputs[self.output][self.offset : self.offset + len(self.data)]
        return bytes(now.numpy()) == self.data


class Glance:
    """Reads a few pieces of outputs, at places drawn before: between an answer and this nobody must have time."""

    def __init__(self) -> None:
        self._fractions = [_RANDOM.random() for _ in range(_PIECES)]
        self._copy = ctypes.create_string_buffer(_PIECES * _PIECE_BYTES)

    def __call__(self, pid: int, places: list[tuple[int, int]]) -> list[Piece] | None:
        """What a process holds now at random points of its outputs, by one system call; None where that fails."""
        spots: list[tuple[int, int, int]] = []
        ranges = array("Q")
        for number, fraction in enumerate(self._fractions if places else ()):
            output = number % len(places)
            address, size = places[output]
            length = min(size, _PIECE_BYTES)
            offset = int(fraction * (size - length + 1))
            spots.append((output, offset, length))
            ranges.extend(((address + offset) % (1 << 64), length))
        total = sum(length for *_, length in spots)
        here = _Range(ctypes.addressof(self._copy), total)
        try:
            done = _libc().process_vm_readv(
                pid, ctypes.byref(here), 1, ctypes.c_void_p(ranges.buffer_info()[0]), len(spots), 0
            )
        except AttributeError:
            return None
        if done != total:
            return None
        pieces, start = [], 0
        for output, offset, length in spots:
            pieces.append(Piece(output, offset, self._copy.raw[start : start + length]))
            start += length
        return pieces


def can_be_read(pid: int, read: ReadMemory) -> bool:
    """Whether the system lets us read the memory of this process, one of our own."""
    try:
        first = Path(f"/proc/{pid}/maps").read_text().partition("-")[0]
        return read(pid, int(first, 16), 1).numel() == 1
    except (OSError, ValueError):
        return False


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return libc


def rebuilt(memory: list[torch.Tensor], described: list[Any], places: list[tuple[int, int]]) -> list[torch.Tensor]:
    """The outputs, from their bytes, from what the runner says of their shapes, and from where they lay.

    Raises:
        Fault: these do not fit, or not every element had memory of its own.
    """
    if len(memory) != len(described):
        raise Fault("CHEATED", "the candidate's process described other outputs than it returned")
    outputs = [_shaped(data, meta) for data, meta in zip(memory, described, strict=True)]
    try:
        require_own_memory([replace(Lying.of(t), address=at) for t, (at, _) in zip(outputs, places, strict=True)])
    except Structure as error:
        raise Fault(error.kind, str(error)) from None
    return outputs


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
