"""How a runner hands outputs over: through the shared memory, by a handle to GPU memory, or by their addresses."""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import Any

import torch

from kopt_mcp.evaluator import on_device
from kopt_mcp.evaluator.watching import Structure, parts

TOKEN_BYTES = 16
PLACE = struct.Struct("<QQI")
"""Address and bytes of one output, as a timed call on a CPU hands it over, and how many dimensions of it follow: none
where it has no gaps."""
DIMENSION = struct.Struct("<qq")
"""How often a dimension steps, and by how many bytes."""
COUNT = struct.Struct("<I")
FAILED = 0xFFFFFFFF
"""Instead of a number of outputs: there are none that could be read."""


class Outbox:
    """Where outputs go that the harness asked for."""

    def __init__(self, shared: mmap.mmap, device: str) -> None:
        self._shared, self._device = shared, device
        self._pinned = 0
        self._driver: on_device.Driver | None = None
        self._named: list[torch.Tensor] = []

    def leave_on_device(self, driver: on_device.Driver | None = None) -> None:
        """From here on large outputs stay where they are, and are named; by CUDA's driver unless another is given."""
        self._driver = driver or on_device.CudaDriver()

    def make_room(self, outputs: list[dict[str, Any]]) -> None:
        """Pin the part of the shared memory that outputs go to: copies from the device become ten times faster."""
        size = sum(o["bytes"] + 64 for o in outputs)
        if self._device == "cpu" or self._driver is not None or size <= self._pinned:
            return
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._shared))
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if self._pinned:
            runtime.cudaHostUnregister(start)
        self._pinned = size if int(runtime.cudaHostRegister(start, size, 0)) == 0 else 0

    def put(self, outputs: list[torch.Tensor]) -> list[dict[str, Any]]:
        """Hand outputs over, through the shared memory as far as they fit; the harness compares the bytes."""
        offset = 0
        stored = []
        self._named.clear()
        for tensor in outputs:
            if (named := self._left(tensor)) is not None:
                stored.append(named)
                continue
            size = tensor.numel() * tensor.element_size()
            if offset + size > len(self._shared):
                raise Structure("INCORRECT_SHAPE", f"the outputs are larger than expected ({offset + size} bytes)")
            meta = {"shape": list(tensor.shape), "dtype": dtype_name(tensor), "offset": offset, "bytes": size}
            as_it_is(view(self._shared, meta)).copy_(as_it_is(tensor))
            stored.append(meta)
            offset += -(-size // 64) * 64
        if self._device != "cpu":
            torch.cuda.synchronize()
        return stored

    def _left(self, tensor: torch.Tensor) -> dict[str, Any] | None:
        """An output that stays where it is; None where it is small, or in memory that no other process can be given."""
        if self._driver is None or tensor.numel() * tensor.element_size() < on_device.LEAST_BYTES:
            return None
        self._named.append(tensor.contiguous())
        try:
            return on_device.named(self._driver, self._named[-1])
        except OSError:
            return None


def where(out: Any) -> bytes:
    """How many outputs there are and where they lie, in few steps: this is within the time of the call."""
    tensors = parts(out)
    if not all(type(t) is torch.Tensor and t.layout is torch.strided for t in tensors):
        return COUNT.pack(FAILED)
    places, dimensions = [], []
    for tensor in tensors:
        span = _span(tensor)
        gaps = _dimensions(tensor) if span != tensor.numel() * tensor.element_size() else []
        places.append(PLACE.pack(tensor.data_ptr(), span, len(gaps)))
        dimensions += gaps
    return COUNT.pack(len(tensors)) + b"".join([*places, *dimensions])


def _dimensions(tensor: torch.Tensor) -> list[bytes]:
    size = tensor.element_size()
    return [DIMENSION.pack(n, s * size) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to behind the last one."""
    if tensor.is_contiguous():
        return tensor.numel() * tensor.element_size()
    return (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))) * tensor.element_size()


def view(shared: mmap.mmap, meta: dict[str, Any]) -> torch.Tensor:
    """A CPU tensor over a piece of the shared memory."""
    dtype: torch.dtype = getattr(torch, meta["dtype"])
    if meta["bytes"] == 0:
        return torch.empty(meta["shape"], dtype=dtype)
    flat = torch.frombuffer(shared, dtype=torch.uint8, count=meta["bytes"], offset=meta["offset"])
    return flat.view(dtype).view(meta["shape"])


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory under a type that is copied bit by bit: of truth values torch would make ones and zeros."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def dtype_name(tensor: torch.Tensor) -> str:
    """Torch's name for the type."""
    return str(tensor.dtype).removeprefix("torch.")
