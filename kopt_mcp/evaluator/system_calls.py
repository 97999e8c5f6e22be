"""System calls that a candidate has no use for, and by which it would reach what no folder and no namespace keeps away.

A socket with a path is opened by connecting to it, which Landlock does not see: behind one may be the user's desktop,
a terminal multiplexer or a container service, each of which starts programs. So there are sockets of the own, empty
network only, and pairs that are connected to each other. Keys outlive a process in the session it was started from.
Rings of requests (io_uring) would get around all of this. Timers go off while their process is stopped: by the ten
thousand they take the cores away from whoever is being timed, though nobody runs.

The filter is a program for the kernel (seccomp), which each system call passes. Python's own way into it does not
exist, so it is written down here, instruction by instruction.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_SET_FILTER, _SPEC_ALLOW = 1, 4
"""linux/seccomp.h; the second keeps older kernels from slowing the process down against speculation."""
_ALLOW, _REFUSE, _MISSING = 0x7FFF0000, 0x00050000 | 13, 0x00050000 | 38
"""SECCOMP_RET_ALLOW, and SECCOMP_RET_ERRNO with EACCES and with ENOSYS."""
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
"""linux/bpf_common.h: load a word, jump if equal, jump if not below, mask, end."""
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`: which call, of which architecture, low words of its arguments."""
_OTHER_NUMBERS = 0x40000000
"""From here on, numbers of x86-64 are those of its x32 variant."""


@dataclass(frozen=True)
class _Calls:
    """Numbers of system calls on one kind of processor, and the kernel's name for that (linux/audit.h)."""

    arch: int
    seccomp: int
    socket: int
    socketpair: int
    refused: tuple[int, ...]
    """add_key, request_key, keyctl, io_uring_setup."""
    missing: tuple[int, ...]
    """timer_create, timerfd_create: said not to be there, as by a kernel built without them, for which programs have
    another way. What is left has one timer for each process or thread, of which there may be few: alarm, setitimer,
    whatever waits."""


_CALLS = {
    "x86_64": _Calls(0xC000003E, 317, 41, 53, (248, 249, 250, 425), (222, 283)),
    "aarch64": _Calls(0xC00000B7, 277, 198, 199, (217, 218, 219, 425), (107, 85)),
}
_FAMILIES = (2, 10, 16)
"""AF_INET, AF_INET6, and AF_NETLINK, by which a C library asks for addresses."""
_KIND, _DATAGRAMS = 0xF, 2
"""Of a socket's type, without its flags; a pair of that kind can still be connected to others."""
_INSTRUCTION = struct.Struct("<HBBI")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse() -> str:
    """Have the kernel refuse them to this process and its children from here on; "on", or why not."""
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return f"off: not known for {platform.machine()}"
    code = _program(calls)
    program = _Program(len(code), b"".join(code))
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(calls.seccomp, _SET_FILTER, _SPEC_ALLOW, ctypes.byref(program))
    return "on" if done == 0 else f"off: {os.strerror(ctypes.get_errno())}"


def _program(calls: _Calls) -> list[bytes]:
    refuse, allow = _do(_RETURN, _REFUSE), _do(_RETURN, _ALLOW)
    families = [_do(_LOAD, _FIRST), *_each(_FAMILIES, allow), refuse]
    pairs = [_do(_LOAD, _SECOND), _do(_AND, _KIND), *_each([_DATAGRAMS], refuse), allow]
    return [
        *(_do(_LOAD, _ARCH), _INSTRUCTION.pack(_EQUAL, 1, 0, calls.arch), refuse, _do(_LOAD, _NUMBER)),
        *(_unless(_AT_LEAST, _OTHER_NUMBERS, 1), refuse),
        *_each(calls.refused, refuse),
        *_each(calls.missing, _do(_RETURN, _MISSING)),
        *(_unless(_EQUAL, calls.socket, len(families)), *families),
        *(_unless(_EQUAL, calls.socketpair, len(pairs)), *pairs),
        allow,
    ]


def _each(values: Sequence[int], then: bytes) -> list[bytes]:
    """End so where the loaded word is one of these."""
    return [step for one in values for step in (_unless(_EQUAL, one, 1), then)]


def _unless(compare: int, value: int, skip: int) -> bytes:
    """Skip so many instructions unless the loaded word compares so."""
    return _INSTRUCTION.pack(compare, 0, skip, value)


def _do(what: int, value: int) -> bytes:
    return _INSTRUCTION.pack(what, 0, 0, value)
