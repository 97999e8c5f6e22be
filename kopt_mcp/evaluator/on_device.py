"""Outputs that stay on the GPU: the runner names them by a CUDA IPC handle, the harness copies them on the device.

Through host memory a large output takes a tenth of a second, most of it for pages that must be made and pinned in
every runner anew. Whether the system lets a shut-in process do this is tried once with a kernel of our own; where it
does not, or on HIP, outputs go through the shared memory.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Protocol

import torch

from kopt_mcp.evaluator.answers import is_size, is_sizes
from kopt_mcp.evaluator.faults import Fault

LEAST_BYTES = 1 << 20
"""Smaller outputs are through the shared memory before a handle is open."""
_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class Driver(Protocol):
    """What is needed of a device's driver. Every method may raise `OSError` with the driver's code."""

    def handle(self, address: int) -> tuple[bytes, int]:
        """A name for the allocation that holds `address`, good in other processes, and the offset within it."""

    def open(self, handle: bytes) -> tuple[int, int]:
        """Map another process's allocation: its address here, and its size."""

    def view(self, address: int, size: int) -> torch.Tensor:
        """Bytes on the device, as they lie there."""

    def close(self, address: int) -> None:
        """Unmap what `open` has mapped."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_byte * _HANDLE_BYTES),)


class _Bytes:
    """Memory of the device by its address, as torch takes it: version 3 of the CUDA array interface."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


class CudaDriver:
    """See `Driver`. The calling thread must have used torch on the device."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def handle(self, address: int) -> tuple[bytes, int]:
        """See `Driver`."""
        base, _ = self._range(address)
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle), address - base

    def open(self, handle: bytes) -> tuple[int, int]:
        """See `Driver`."""
        address = ctypes.c_uint64()
        flags = ctypes.c_uint(_LAZY_PEER_ACCESS)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(handle), flags)
        return address.value, self._range(address.value)[1]

    def view(self, address: int, size: int) -> torch.Tensor:
        """See `Driver`."""
        return torch.as_tensor(_Bytes(address, size), device="cuda")

    def close(self, address: int) -> None:
        """See `Driver`."""
        torch.cuda.synchronize()
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def _range(self, address: int) -> tuple[int, int]:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value, size.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._cuda, name)(*arguments))
        if code != 0:
            raise OSError(code, f"{name} failed with CUDA error {code}")


def named(driver: Driver, tensor: torch.Tensor) -> dict[str, Any]:
    """The runner's side: how the harness finds a contiguous tensor, which must live until it has been read."""
    handle, offset = driver.handle(tensor.data_ptr())
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "bytes": tensor.numel() * tensor.element_size(),
        "handle": handle.hex(),
        "offset": offset,
    }


def read(driver: Driver, meta: dict[str, Any]) -> torch.Tensor:
    """The harness's side: a private copy of one output.

    Raises:
        Fault: the description makes no sense, or what it describes cannot be read.
    """
    handle = checked(meta)
    try:
        mapped = driver.open(handle)
    except OSError as error:
        raise Fault("RUNTIME_ERROR", f"its output cannot be read: {error.strerror}") from None
    try:
        return copied(driver, meta, *mapped)
    finally:
        driver.close(mapped[0])


def copied(driver: Driver, meta: dict[str, Any], address: int, size: int) -> torch.Tensor:
    """The same of an output whose memory is mapped: `size` bytes at `address`. The description has been checked.

    Raises:
        Fault: it reaches beyond that.
    """
    if meta["offset"] + meta["bytes"] > size:
        raise Fault("CHEATED", "the runner described an output beyond the end of its memory")
    data = driver.view(address + meta["offset"], meta["bytes"]).clone()
    return data.view(getattr(torch, meta["dtype"])).view(meta["shape"])


def checked(meta: Any) -> bytes:
    """The handle, if the description of a piece of memory makes sense.

    Raises:
        Fault: it does not.
    """
    if not isinstance(meta, dict):
        raise Fault("CHEATED", "the runner described an output that is none")
    sizes = is_sizes(meta.get("shape")) and is_size(meta.get("bytes")) and is_size(meta.get("offset"))
    dtype = getattr(torch, meta["dtype"], None) if isinstance(meta.get("dtype"), str) else None
    try:
        handle = bytes.fromhex(meta["handle"])
    except (TypeError, ValueError):
        handle = b""
    if not sizes or not isinstance(dtype, torch.dtype) or len(handle) != _HANDLE_BYTES:
        raise Fault("CHEATED", "the runner described an output that is none")
    if math.prod(meta["shape"]) * dtype.itemsize != meta["bytes"] or meta["bytes"] == 0:
        raise Fault("CHEATED", "the runner described an output whose size does not match its shape")
    return handle
