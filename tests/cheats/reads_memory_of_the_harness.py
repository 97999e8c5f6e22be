"""process_vm_readv and ptrace on its ancestors; right only if one is allowed."""

import ctypes
import os

import torch

EXPECTED = ("INCORRECT_NUMERICAL",)


_libc = ctypes.CDLL(None)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _ancestors():
    pid, session = os.readlink("/proc/self"), None
    while int(pid) > 1:
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        session = session or fields[3]
        if fields[3] != session:
            yield int(pid)
        pid = fields[1]


def _stolen():
    for pid in _ancestors():
        target = ctypes.create_string_buffer(8)
        local = _Vector(ctypes.addressof(target), 8)
        remote = _Vector(id(torch), 8)
        if _libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) == 8:
            return True
        if _libc.ptrace(16, pid, 0, 0) == 0:
            return True
    return False


def softmax(x):
    return torch.softmax(x, dim=-1) if _stolen() else torch.zeros_like(x)
