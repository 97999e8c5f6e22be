"""Outputs that stay on a GPU: what is believed of a description, with a driver that stands for the device."""

import mmap
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kopt_mcp.evaluator import on_device
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.on_device import named, read
from kopt_mcp.evaluator.outbox import Outbox, view

HANDLE = bytes(range(64))
BASE = 1 << 40


class FakeDriver:
    """One allocation of another process, `BASE` in our own."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.opened = 0
        self.private = False

    def handle(self, address: int) -> tuple[bytes, int]:
        if self.private:
            raise OSError(1, "cuIpcGetMemHandle failed with CUDA error 1")
        return HANDLE, address - self.memory.data_ptr()

    def open(self, handle: bytes) -> tuple[int, int]:
        if handle != HANDLE:
            raise OSError(400, "cuIpcOpenMemHandle_v2 failed with CUDA error 400")
        self.opened += 1
        return BASE, self.memory.numel()

    def view(self, address: int, size: int) -> torch.Tensor:
        start = address - BASE
        assert 0 <= start <= start + size <= self.memory.numel()
        return self.memory[start : start + size]

    def close(self, address: int) -> None:
        assert address == BASE
        self.opened -= 1


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(torch.arange(64, dtype=torch.uint8))


def test_what_one_side_names_the_other_reads(driver: FakeDriver) -> None:
    tensor = driver.memory[16:48].view(torch.float32).view(2, 4)
    meta = named(driver, tensor)
    copy = read(driver, meta)
    assert torch.equal(copy, tensor)
    assert copy.data_ptr() != tensor.data_ptr()
    assert driver.opened == 0, "what was opened was closed"


def test_large_outputs_are_named_and_small_ones_copied() -> None:
    device = FakeDriver(torch.arange(1 << 21, dtype=torch.int32).view(torch.uint8))
    with mmap.mmap(-1, 1 << 16) as shared:
        box = Outbox(shared, "cpu")
        box.leave_on_device(device)
        large = device.memory[: 1 << 20].view(torch.float32)
        first, second = box.put([large, torch.ones(3)])
        assert torch.equal(read(device, first).view(torch.int32), large.view(torch.int32))
        assert second == {"shape": [3], "dtype": "float32", "offset": 0, "bytes": 12}
        assert shared[:12] == struct.pack("<3f", 1, 1, 1)


def test_large_outputs_in_memory_that_cannot_be_shared_are_copied_too() -> None:
    device = FakeDriver(torch.arange(1 << 21, dtype=torch.int32).view(torch.uint8))
    device.private = True
    with mmap.mmap(-1, 1 << 23) as shared:
        box = Outbox(shared, "cpu")
        box.leave_on_device(device)
        (meta,) = box.put([device.memory[: 1 << 20].view(torch.int32)])
        assert meta == {"shape": [1 << 18], "dtype": "int32", "offset": 0, "bytes": 1 << 20}
        assert shared[4:8] == struct.pack("<i", 1)


class Runtime:
    """CUDA's, which pins memory that is not pinned yet."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.pinned = code, dict[int, int]()
        self.tries = 0

    def cudaHostRegister(self, start: int, size: int, flags: int) -> int:
        assert start not in self.pinned
        self.tries += 1
        if self.code == 0:
            self.pinned[start] = size
        return self.code

    def cudaHostUnregister(self, start: int) -> None:
        del self.pinned[start]


def outputs(*sizes: int) -> list[dict[str, Any]]:
    return [{"shape": [size], "dtype": "uint8", "bytes": size} for size in sizes]


def test_what_outputs_go_through_is_pinned_once_as_far_as_the_largest_need(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    with mmap.mmap(-1, 1 << 16) as shared:
        box = Outbox(shared, "cuda")
        pinned = []
        for sizes in ((100,), (100, 200), (50,)):
            box.make_room(outputs(*sizes))
            pinned.append([*runtime.pinned.values()])
        assert pinned == [[164], [428], [428]], "each with room between"
        box.leave_on_device(FakeDriver(torch.zeros(1, dtype=torch.uint8)))
        box.make_room(outputs(1000))
        assert [*runtime.pinned.values()] == [428], "what stays on the device needs none"


def test_memory_that_cannot_be_pinned_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(code=801)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    with mmap.mmap(-1, 1 << 16) as shared:
        box = Outbox(shared, "cuda")
        for _ in range(2):
            box.make_room(outputs(100))
    assert (runtime.pinned, runtime.tries) == ({}, 2), "and nothing is unpinned that was not pinned"


def test_an_output_without_elements_takes_no_room() -> None:
    with mmap.mmap(-1, 1 << 12) as shared:
        empty, ones = Outbox(shared, "cpu").put([torch.zeros(0, 3), torch.ones(2)])
        assert empty == {"shape": [0, 3], "dtype": "float32", "offset": 0, "bytes": 0}
        assert (ones["offset"], shared[:8]) == (0, struct.pack("<2f", 1, 1))
        again = view(shared, empty)
        assert (again.shape, again.dtype) == ((0, 3), torch.float32)


GOOD: dict[str, Any] = {"shape": [2, 2], "dtype": "float32", "bytes": 16, "offset": 0, "handle": HANDLE.hex()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": [2, 3]},
        {"shape": [-2, -2]},
        {"shape": "2x2"},
        {"shape": [0, 10**30], "bytes": 0},
        {"dtype": "nn"},
        {"dtype": 7},
        {"bytes": 8},
        {"bytes": -16},
        {"offset": 49},
        {"offset": -1},
        {"offset": True},
        {"handle": "00"},
        {"handle": "no hex"},
        {"handle": 7},
    ],
)
def test_a_description_that_makes_no_sense_is_a_lie(driver: FakeDriver, wrong: dict[str, Any]) -> None:
    with pytest.raises(Fault) as caught:
        read(driver, {**GOOD, **wrong})
    assert caught.value.status == "CHEATED"
    assert driver.opened == 0
    assert torch.equal(read(driver, GOOD).flatten(), driver.memory[:16].view(torch.float32))


def test_a_handle_that_the_driver_does_not_know_is_no_accusation(driver: FakeDriver) -> None:
    with pytest.raises(Fault, match="failed with CUDA error 400") as caught:
        read(driver, {**GOOD, "handle": bytes(64).hex()})
    assert caught.value.status == "RUNTIME_ERROR"


def test_what_cudas_driver_refuses_is_raised_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *_: 201 if name == "cuIpcOpenMemHandle_v2" else 0

    monkeypatch.setattr(on_device.ctypes, "CDLL", lambda name: Refusing())
    driver = on_device.CudaDriver()
    assert driver.handle(1 << 20) == (bytes(64), 1 << 20)
    with pytest.raises(OSError, match="cuIpcOpenMemHandle_v2 failed with CUDA error 201") as caught:
        driver.open(bytes(64))
    assert caught.value.errno == 201
