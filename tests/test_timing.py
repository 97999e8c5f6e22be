"""The clock of a GPU where there is none: what it asks of the device, in which order, and what it makes of that."""

import ctypes
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kopt_mcp.evaluator import timing
from kopt_mcp.evaluator.timing import EventClock, Sample


class Device:
    """A GPU that does everything at once and notes it; time passes only where it is told to."""

    def __init__(self, patch: pytest.MonkeyPatch, driver: bool = True) -> None:
        self.log: list[str] = []
        self.now_ns = 0
        self.elapsed_ms = iter([0.05] * 1000)
        self._driver = driver
        zeros = torch.zeros
        patch.setattr(ctypes, "CDLL", self._library)
        patch.setattr(torch, "zeros", lambda *shape, device="cpu", **rest: zeros(*shape, **rest))
        patch.setattr(torch.cuda, "Event", lambda enable_timing: Event(self))
        patch.setattr(torch.cuda, "_sleep", lambda cycles: self.log.append(f"spin {cycles}"))
        patch.setattr(torch._C, "_cuda_synchronize", lambda: self.log.append("wait for all"), raising=False)
        patch.setattr(timing, "_clock", lambda: self.now_ns)
        patch.setattr(timing, "_FEW_NUMBERS", 4)
        self.clock = EventClock(1)
        self.clock._buffer = SimpleNamespace(sum=lambda: self.log.append("read"))  # type: ignore[assignment]

    def _library(self, name: str) -> Any:
        if not self._driver:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(cuCtxResetPersistingL2Cache=lambda: self.log.append("forget"))

    def passes(self, us: float, what: str) -> None:
        """Time in which something happens."""
        self.now_ns += int(us * 1000)
        self.log.append(what)


class Event:
    """One of its events."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def record(self) -> None:
        self._device.log.append("event")

    def synchronize(self) -> None:
        self._device.log.append("wait for the event")

    def elapsed_time(self, end: "Event") -> float:
        assert end is not self
        return next(self._device.elapsed_ms)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_a_call_is_between_two_events_behind_an_eviction_and_a_spin_and_what_is_said_is_in_microseconds(
    device: Device,
) -> None:
    def call() -> str:
        device.passes(7.0, "call")
        return "output"

    def after(out: str) -> str:
        device.passes(1.0, f"after, with the {out}")
        return f"copy of the {out}"

    before = partial(device.log.append, "before")
    out, sample = device.clock.sample(call, 30.0, warm=False, before=before, after=after)
    assert device.log == [
        *("wait for all", "forget", "read", "spin 60000", "before"),
        *("event", "call", "event", "after, with the output", "wait for the event", "wait for all"),
    ]
    assert (out, sample) == ("copy of the output", Sample(us=50.0, host_us=7.0, tail_us=0.0))


def test_work_that_goes_on_after_the_calls_own_stream_is_told_as_a_tail(device: Device) -> None:
    device.clock._sync = partial(device.passes, 12.0, "wait for all")
    assert device.clock.sample(lambda: None, 1.0, warm=True)[1].tail_us == 12.0
    assert "read" not in device.log, "a warm call keeps its caches"


def test_what_an_empty_pair_reads_is_a_median_and_is_taken_from_what_our_own_calls_take(device: Device) -> None:
    device.elapsed_ms = iter([0.002] * 30 + [9.0] * 11)
    assert device.clock.empty_us == pytest.approx(2.0)
    calls = [kind for ms in (0.004, 0.012, 0.020) for kind in (*[ms] * 8, 9.0)]
    device.elapsed_ms = iter([*calls, *[0.002] * 41])
    assert device.clock.known_us == pytest.approx((4.0 + 12.0 + 20.0) / 3 - 2.0)


def test_our_own_calls_are_of_three_sizes(device: Device) -> None:
    clock = device.clock
    clock._few[0] = torch.arange(4)
    clock._many = torch.ones(3)
    clock.known(0)
    assert (device.log, clock._few[1].tolist(), clock._many.tolist()) == (["spin 1"], [0] * 4, [1.0] * 3)
    clock.known(1)
    assert (clock._few[1].tolist(), clock._many.tolist()) == ([-1, -2, -3, -4], [1.0] * 3)
    clock.known(2)
    assert clock._many.tolist() == [-1.0] * 3
    clock.wait()
    assert device.log == ["spin 1", "wait for all"]


@pytest.mark.parametrize(("host_us", "us"), [(999.0, 50.0), (1001.0, math.inf)])
def test_an_eviction_that_the_host_was_too_slow_for_is_said_to_have_taken_for_ever(
    device: Device, host_us: float, us: float
) -> None:
    over = device.clock.clear(partial(device.log.append, "before"), partial(device.passes, host_us, "after"))
    order = ["wait for all", "forget", "spin 2000000", "event", "before", "read", "event", "after"]
    assert device.log == order
    assert over() == us
    assert device.log == [*order, "wait for the event"]


def test_without_cudas_driver_as_on_an_amd_gpu_the_cache_is_read_full_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(monkeypatch, driver=False)
    device.clock.evict()
    assert device.log == ["read"]
