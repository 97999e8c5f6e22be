"""Streams that wait for a word in the shared memory, or write one: what both sides of a `gate` need."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from kopt_mcp.evaluator.shared import INPUTS_AT

GO_AT, DONE_AT = INPUTS_AT, INPUTS_AT + 128
"""Where the words lie: what lets a call go, and what says that it is over. No inputs are there on a GPU."""
_BYTES = 4096
"""A page, which is the least that can be made visible to the device."""


class Stream:
    """The current stream of torch, and words on one page of memory."""

    def __init__(self, memory: Any, start: int = GO_AT, register: Callable[[int, int], int] | None = None) -> None:
        """`start` is where in the memory the page begins; `register` makes memory of the host visible to the device.

        Raises:
            OSError: it cannot be.
        """
        self._cuda = ctypes.CDLL("libcuda.so.1")
        here = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start
        if (code := (register or _register)(here, _BYTES)) != 0:
            raise OSError(code, f"cudaHostRegister failed with CUDA error {code}")
        self._here = here
        self._there = self._seen_by_the_device(here) - start
        self._beside: torch.cuda.Stream | None = None

    def close(self) -> None:
        """The memory is about to be given back."""
        torch.cuda.cudart().cudaHostUnregister(self._here)  # type: ignore[no-untyped-call]

    def wait(self, at: int, ticket: int) -> None:
        """What is queued after this waits until the word there holds `ticket` or more."""
        self._call("cuStreamWaitValue32_v2", self._there + at, ticket)

    def wait_beside(self, at: int, ticket: int) -> None:
        """A stream that nothing is queued on waits for the same: see `Candidate.enqueue`."""
        if self._beside is None:
            self._beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._beside):
            self.wait(at, ticket)

    def write(self, at: int, ticket: int) -> None:
        """Once what has been queued before this is over, the word there holds `ticket`."""
        self._call("cuStreamWriteValue32_v2", self._there + at, ticket)

    def _seen_by_the_device(self, here: int) -> int:
        there = ctypes.c_uint64()
        code = self._cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(there), ctypes.c_void_p(here), ctypes.c_uint(0))
        if code != 0:
            raise OSError(code, f"cuMemHostGetDevicePointer_v2 failed with CUDA error {code}")
        return there.value

    def _call(self, name: str, address: int, value: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = getattr(self._cuda, name)(stream, ctypes.c_uint64(address), ctypes.c_uint32(value), ctypes.c_uint(0))
        if code != 0:
            raise OSError(code, f"{name} failed with CUDA error {code}")


def _register(address: int, size: int) -> int:
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return int(runtime.cudaHostRegister(address, size, 0))
