"""Reading memory as it is: as far as there is some, and where the system does not let us."""

import ctypes
import mmap
from types import SimpleNamespace

import pytest

from kopt_mcp.evaluator import peeking
from kopt_mcp.evaluator.peeking import Memory, Unreadable, own_memory, readable


def test_memory_is_read_until_there_is_enough_of_it() -> None:
    text = ctypes.create_string_buffer(b"some bytes and many more", 40 * mmap.PAGESIZE)
    found = readable(ctypes.addressof(text), 24)
    assert found.startswith(b"some bytes and many more")
    assert len(found) <= mmap.PAGESIZE, "no more than to the end of its page"
    longer = readable(ctypes.addressof(text), 20 * mmap.PAGESIZE)
    assert 20 * mmap.PAGESIZE <= len(longer) < 40 * mmap.PAGESIZE
    assert longer[:24] == b"some bytes and many more"
    assert not any(longer[24:])


def test_where_there_is_no_memory_none_is_read() -> None:
    assert readable(16, 100) == b""
    with pytest.raises(Unreadable, match="cannot be read: Bad address"):
        own_memory(16, 8)


def test_a_system_without_such_reads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peeking, "_libc", SimpleNamespace)  # a C library that has no such function
    text = ctypes.create_string_buffer(b"here")
    with pytest.raises(OSError, match="Function not implemented"):
        Memory(1, [(ctypes.addressof(text), 4)])()
    with pytest.raises(Unreadable, match="cannot be read: Function not implemented"):
        own_memory(ctypes.addressof(text), 4)
