"""Read memory as it is: another process's, again and again, or one's own without harm where nothing is."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache

_MOST_PIECES = 1024
"""What one `process_vm_readv` may be asked for."""
_PAGE = 4096

Piece = tuple[int, int]
"""An address and a number of bytes."""
Read = Callable[[], bytes]
"""All the pieces, one behind the other; raises `OSError`."""
Reader = Callable[[int, list[Piece]], Read]
"""For a process and pieces of its memory."""


class Unreadable(Exception):
    """There is no memory where some was expected, or it does not hold what was expected."""


def own_memory(address: int, size: int) -> bytes:
    """Memory of this process, without harm where nothing is."""
    try:
        return Memory(os.getpid(), [(address, size)])()
    except OSError as error:
        raise Unreadable(f"memory that cannot be read: {error.strerror}") from None


def readable(address: int, most: int) -> bytes:
    """Memory of this process, as far as there is some."""
    memory = b""
    end = address + _PAGE - address % _PAGE
    with contextlib.suppress(Unreadable):
        while len(memory) < most:
            memory += own_memory(address + len(memory), end - address - len(memory))
            end += 16 * _PAGE
    return memory


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Memory:
    """Reads pieces of another process's memory, again and again."""

    def __init__(self, pid: int, pieces: list[Piece]) -> None:
        self._pid = pid
        self._parts = [pieces[at : at + _MOST_PIECES] for at in range(0, len(pieces), _MOST_PIECES)]
        self._spans = [(_Span * len(part))(*(_Span(*piece) for piece in part)) for part in self._parts]
        self._buffer = ctypes.create_string_buffer(sum(size for _, size in pieces))

    def __call__(self) -> bytes:
        """The pieces, one behind the other.

        Raises:
            OSError: they may not be read, or are not there.
        """
        at = 0
        for part, spans in zip(self._parts, self._spans, strict=True):
            size = sum(size for _, size in part)
            self._fill(_Span(ctypes.addressof(self._buffer) + at, size), spans)
            at += size
        return self._buffer.raw

    def _fill(self, here: _Span, there: ctypes.Array[_Span]) -> None:
        try:
            count = _libc().process_vm_readv(self._pid, ctypes.byref(here), 1, there, len(there), 0)
        except AttributeError:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        if count != here.size:
            code = ctypes.get_errno() if count < 0 else errno.EFAULT
            raise OSError(code, os.strerror(code))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return libc
