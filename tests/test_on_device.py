"""Outputs that stay on a GPU: what is believed of a description, with a driver that stands for the device."""

import mmap
import struct
from typing import Any

import pytest
import torch

from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.on_device import named, read
from kopt_mcp.evaluator.outbox import Outbox

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
