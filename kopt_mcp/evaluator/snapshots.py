"""Outputs read out of a stopped process: what is in its memory, and nothing that it says about that."""

from __future__ import annotations

import ctypes
import errno
import math
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import SystemRandom
from typing import Any, NamedTuple

import torch

from kopt_mcp.evaluator.answers import is_sizes
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.lying import Lying
from kopt_mcp.evaluator.watching import Structure, require_own_memory

_RANDOM = SystemRandom()
ReadMemory = Callable[[int, int, int], torch.Tensor]
"""(process, address, size) to bytes; raises OSError, EFAULT where nothing is."""


_PIECES, _PIECE_BYTES = 64, 64
"""How many pieces of all outputs are read at once, one of each at the least, and how large they are: few enough for
microseconds."""
_ADDRESSES = (1 << 64) - 1
"""What an address has room for, whatever somebody says."""


class Spot(NamedTuple):
    """Where an output lies in the memory of its process, as that says."""

    address: int
    size: int
    """In bytes, gaps and all."""
    dimensions: tuple[tuple[int, int], ...] = ()
    """Of an output with gaps: how often each dimension steps, and by how many bytes."""

    def offset(self, fraction: float, length: int) -> int:
        """Where some piece of it begins: at an element, where pieces drawn from all of it would lie in its gaps."""
        if not self.dimensions:
            return int(fraction * (self.size - length + 1))
        left, offset = int(fraction * min(self.size, math.prod(count for count, _ in self.dimensions))), 0
        for count, step in reversed(self.dimensions):
            left, index = divmod(left, max(1, count))
            offset += index * step
        return min(max(0, offset), self.size - length)

    def is_of(self, one: Lying) -> bool:
        """Whether such an output has these gaps."""
        if not self.dimensions:
            return math.prod(one.shape) * one.itemsize == self.size
        return self.dimensions == tuple((n, s * one.itemsize) for n, s in zip(one.shape, one.strides, strict=True))


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

    def __init__(self, like: Sequence[Spot] = ()) -> None:
        """`like`: what the outputs were at the call before, so that all can be worked out ahead for such ones."""
        self._fractions = [_RANDOM.random() for _ in range(_PIECES)]
        self._copy = ctypes.create_string_buffer(_PIECES * _PIECE_BYTES)
        self._done = False
        self._plan(like)

    def __call__(self, pid: int, places: Sequence[Spot]) -> None:
        """Note what a process holds now at random points of its outputs, by one system call: see `pieces`."""
        if [place[1:] for place in places] != self._layout:
            self._plan(places)
        at = [place.address for place in places]
        self._ranges[::2] = array("Q", [(at[output] + offset) & _ADDRESSES for output, offset, _ in self._spots])
        there = ctypes.c_void_p(self._ranges.buffer_info()[0])
        try:
            done = _libc().process_vm_readv(pid, ctypes.byref(self._here), 1, there, len(self._spots), 0)
        except AttributeError:
            return
        self._done = done == self._here.size

    def pieces(self) -> list[Piece] | None:
        """What was noted; None where that failed."""
        if not self._done:
            return None
        found, start = [], 0
        for output, offset, length in self._spots:
            found.append(Piece(output, offset, self._copy.raw[start : start + length]))
            start += length
        return found

    def _plan(self, places: Sequence[Spot]) -> None:
        """Which pieces to read of outputs that lie so, wherever each begins."""
        self._layout = [place[1:] for place in places]
        self._spots: list[tuple[int, int, int]] = []
        for number, fraction in enumerate(self._fractions if places else ()):
            output = number % len(places)
            length = min(places[output].size, _PIECE_BYTES)
            self._spots.append((output, places[output].offset(fraction, length), length))
        self._ranges = array("Q", [part for *_, length in self._spots for part in (0, length)])
        self._here = _Range(ctypes.addressof(self._copy), sum(length for *_, length in self._spots))


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


def rebuilt(memory: list[torch.Tensor], described: list[Any], spots: list[Spot] | None = None) -> list[torch.Tensor]:
    """The outputs, from their bytes, from what the runner says of their shapes, and from where it had said they lay.

    Raises:
        Fault: these do not fit, or not every element had memory of its own.
    """
    if len(memory) != len(described):
        raise Fault("CHEATED", "the candidate's process described other outputs than it returned")
    outputs = [_shaped(data, meta) for data, meta in zip(memory, described, strict=True)]
    lying = [Lying.of(t) for t in outputs]
    if spots is not None:
        lying = [replace(one, address=spot.address) for one, spot in zip(lying, spots, strict=True)]
        if not all(spot.is_of(one) for one, spot in zip(lying, spots, strict=True)):
            raise Fault("CHEATED", "the candidate's process described an output otherwise than before")
    try:
        require_own_memory(lying)
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
