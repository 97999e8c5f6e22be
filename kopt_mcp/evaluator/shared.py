"""The memory that a runner and the harness share: outputs come through its first half, inputs through its second."""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import struct
import tempfile
from typing import Any

import torch

from kopt_mcp.evaluator.answers import is_size, is_sizes
from kopt_mcp.evaluator.faults import Fault

SHARED_BYTES = 16 << 30
"""Size of the shared memory; sparse, so that only what is written is allocated."""
_WORD = struct.Struct("@I")
INPUTS_AT = SHARED_BYTES // 2
"""Where the inputs of timed calls on a CPU begin; outputs, and a problem's literals, lie below."""


class SharedMemory:
    """Memory that a runner writes outputs into and the harness reads them from."""

    def __init__(self) -> None:
        # Without memfd (macOS) an unlinked file; the object is kept, since closing it would close the descriptor.
        self._file = None if hasattr(os, "memfd_create") else tempfile.TemporaryFile()  # noqa: SIM115
        self.fd = _memory() if self._file is None else self._file.fileno()
        os.ftruncate(self.fd, SHARED_BYTES)
        if self._file is None:  # a runner that made it smaller would have the harness die of SIGBUS
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self.fd, SHARED_BYTES)
        self._pinned = 0

    def close(self) -> None:
        """Give the memory back; a runner's mapping of it ends with the runner."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._start())  # type: ignore[no-untyped-call]
        self._map.close()
        if self._file is None:
            os.close(self.fd)
        else:
            self._file.close()

    def read(self, meta: dict[str, Any], device: str) -> torch.Tensor:
        """A private copy, on `device`, of one output described by the runner.

        Raises:
            Fault: the description makes no sense.
        """
        if not _is_description(meta):
            raise Fault("CHEATED", "the runner described an output that is none")
        dtype = getattr(torch, meta["dtype"], None)
        if not isinstance(dtype, torch.dtype) or math.prod(meta["shape"]) * dtype.itemsize != meta["bytes"]:
            raise Fault("CHEATED", "the runner described an output whose size does not match its shape")
        if meta["offset"] > SHARED_BYTES - meta["bytes"]:
            raise Fault("CHEATED", "the runner described an output outside the shared memory")
        if meta["bytes"] == 0:
            return torch.empty(meta["shape"], dtype=dtype, device=device)
        if device != "cpu":
            self._pin(meta["offset"] + meta["bytes"])
        return self._bytes(meta["offset"], meta["bytes"]).to(device, copy=True).view(dtype).view(meta["shape"])

    def write(self, tensors: list[torch.Tensor], start: int = 0) -> list[dict[str, Any]]:
        """Put tensors there for the runner to read; returns their descriptions."""
        offset, metas = start, []
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            if size:
                self._bytes(offset, size).copy_(tensor.contiguous().flatten().view(torch.uint8))
            metas.append({"shape": list(tensor.shape), "dtype": _name(tensor.dtype), "offset": offset, "bytes": size})
            offset += -(-size // 64) * 64
        return metas

    def view(self, meta: dict[str, Any]) -> torch.Tensor:
        """The memory itself under a description of our own, on the CPU."""
        flat = self._bytes(meta["offset"], meta["bytes"]) if meta["bytes"] else torch.empty(0, dtype=torch.uint8)
        return flat.view(getattr(torch, meta["dtype"])).view(meta["shape"])

    def peek(self, at: int) -> int:
        """The word of four bytes at an offset, as it is now."""
        return int(_WORD.unpack_from(self._map, at)[0])

    def poke(self, at: int, value: int) -> None:
        """Set that word."""
        _WORD.pack_into(self._map, at, value)

    @property
    def memory(self) -> mmap.mmap:
        """All of it."""
        return self._map

    def _bytes(self, offset: int, size: int) -> torch.Tensor:
        return torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=offset)

    def _pin(self, size: int) -> None:
        """Pin what is read often, so that copies to the device are fast; without it they are merely slower."""
        if size <= self._pinned:
            return
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if self._pinned:
            runtime.cudaHostUnregister(self._start())
        self._pinned = size if int(runtime.cudaHostRegister(self._start(), size, 0)) == 0 else 0

    def _start(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))


def _memory() -> int:
    return os.memfd_create("kopt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _is_description(meta: Any) -> bool:
    """Whether this describes an output: sizes that are sizes, and a name of a dtype."""
    if not isinstance(meta, dict) or not is_sizes(meta.get("shape")):
        return False
    return isinstance(meta.get("dtype"), str) and is_size(meta.get("bytes")) and is_size(meta.get("offset"))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
