"""Time one call of a candidate, inside the runner.

What is measured is a claim: the harness brackets it with its own clock and checks the outputs of these very calls.

On a GPU the time between two events around the call, with the cache evicted by *reading* (a writing flush leaves dirty
lines whose write-back would be charged to the call) and the device kept busy by a spinning kernel while the host
enqueues (otherwise the host's launch latency is what gets measured). The harness subtracts what an empty pair reads,
the same for every candidate. On a CPU the wall clock around the call.

Functions of torch and the clock are bound before the candidate is imported.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

_clock = time.perf_counter_ns
_MHZ = 2000
"""Spin cycles per microsecond, an upper estimate of SM clocks: spinning a little too long costs nothing."""
_EMPTY_PAIRS, _KNOWN_CALLS = 41, 9
_EMPTY_SPIN_US = 400.0
"""Long enough that the host has enqueued both events of an empty pair before the first is reached."""
_CLEAR_SPIN_US = 1000.0
"""The same of an eviction, and of what comes before and after it."""
KINDS = 3
"""How many calls of our own there are, see `EventClock.known`."""
_FEW_NUMBERS, _MANY_NUMBERS = 1 << 20, 1 << 24
"""How many they compute: either is enough for all of a device's processors."""


Call = Callable[[], Any]
Before = Callable[[], None]
After = Callable[[Any], Any]


def _nothing() -> None:
    return


def _itself(out: Any) -> Any:
    return out


@dataclass(frozen=True)
class Sample:
    """One timed call, in microseconds."""

    us: float
    """As measured: an empty measurement is not subtracted."""
    host_us: float
    """Host time of the call alone: how long the device must be kept busy for it to be hidden."""
    tail_us: float
    """Work still running after the call's own stream had finished."""


class WallClock:
    """Time on a CPU."""

    __slots__ = ("_buffer", "_scan")
    method = "wall"
    empty_us = 0.0
    """What an empty measurement reads."""

    def __init__(self, cache_bytes: int) -> None:
        self._buffer = torch.zeros(max(1, min(2 * cache_bytes, 256 << 20)), dtype=torch.uint8)
        self._scan: Any = ctypes.CDLL(None).memchr
        self._scan.argtypes, self._scan.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p

    def sample(
        self, call: Call, spin_us: float, warm: bool, before: Before = _nothing, after: After = _itself
    ) -> tuple[Any, Sample]:
        """See `EventClock.sample`; `spin_us` has no meaning here."""
        if not warm:
            self.evict()
        before()
        start = _clock()
        out = call()
        elapsed = (_clock() - start) / 1000
        return after(out), Sample(elapsed, elapsed, 0.0)

    def evict(self) -> None:
        """Fill the last-level cache with other data. It is shared: the harness can do this for a runner.

        Torch's threads would spin for a millisecond or more afterwards, on cores that others are to have.
        """
        self._scan(self._buffer.data_ptr(), 1, self._buffer.nbytes)  # for a byte that is not there


class EventClock:
    """Time on a CUDA or HIP device."""

    __slots__ = ("_buffer", "_driver", "_event", "_few", "_invert", "_many", "_sleep", "_sync")
    method = "cuda_events"

    def __init__(self, cache_bytes: int) -> None:
        self._event: Any = torch.cuda.Event
        # What torch.cuda.synchronize looks up at each call: a candidate could have put another there by then.
        self._sync: Callable[[], None] = torch._C._cuda_synchronize
        self._sleep: Any = torch.cuda._sleep
        self._invert: Any = torch.bitwise_not
        self._few = torch.zeros((2, _FEW_NUMBERS), dtype=torch.int32, device="cuda")
        # float32, because torch adds up int32 five times as slowly on a GPU: 366 us instead of 70 on an H200.
        self._buffer = torch.zeros(max(2 * cache_bytes, 256 << 20) // 4, dtype=torch.float32, device="cuda")
        self._many = self._buffer[:_MANY_NUMBERS]
        self._driver = _driver()

    @property
    def known_us(self) -> float:
        """What calls of our own take on average, see `known`: medians of several with the L2 cold."""
        total = 0.0
        for kind in range(KINDS):
            call = partial(self.known, kind)
            times = sorted(self.sample(call, _EMPTY_SPIN_US, warm=False)[1].us for _ in range(_KNOWN_CALLS))
            total += times[_KNOWN_CALLS // 2]
        return total / KINDS - self.empty_us

    @property
    def empty_us(self) -> float:
        """What an empty measurement reads: the median of pairs of events with nothing between them."""
        pairs = sorted(self.sample(lambda: None, _EMPTY_SPIN_US, warm=True)[1].us for _ in range(_EMPTY_PAIRS))
        return pairs[_EMPTY_PAIRS // 2]

    def sample(
        self, call: Call, spin_us: float, warm: bool, before: Before = _nothing, after: After = _itself
    ) -> tuple[Any, Sample]:
        """Call once while the device spins for `spin_us`. Evicts the L2 first unless `warm`.

        `before` enqueues what the call must wait for, right ahead of the first event; `after` enqueues what must see
        the whole result, right behind the second. Work that another stream does too early or too late shows there.
        """
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        cycles = int(spin_us * _MHZ)
        self._sync()
        if not warm:
            self.evict()
        self._sleep(cycles)
        before()
        start.record()
        begin = _clock()
        out = call()
        host = _clock() - begin
        end.record()
        out = after(out)
        end.synchronize()
        own_stream_done = _clock()
        self._sync()
        tail = _clock() - own_stream_done
        return out, Sample(start.elapsed_time(end) * 1000, host / 1000, tail / 1000)

    def clear(self, before: Before, after: Before) -> Callable[[], float]:
        """Evict between what the two enqueue, with no pause in which another process could use the device.

        Returns:
            Waits until the eviction is over, and says how many microseconds it took with what came before it: more than
            ever if the device did other work, and infinity if the host was too slow to leave no pause.
        """
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._sync()
        self._forget()
        begin = _clock()
        self._sleep(int(_CLEAR_SPIN_US * _MHZ))
        start.record()
        before()
        self._buffer.sum()
        end.record()
        after()
        late = _clock() - begin > _CLEAR_SPIN_US * 1000

        def over() -> float:
            end.synchronize()
            return math.inf if late else float(start.elapsed_time(end) * 1000)

        return over

    def wait(self) -> None:
        """Until nothing of this process is left on the device, on whatever stream."""
        self._sync()

    def touch(self) -> None:
        """Enqueue a kernel that does next to nothing."""
        self._sleep(1)

    def known(self, kind: int) -> None:
        """Enqueue a call of our own: on one processor, or on all and a few MB, or on all and many.

        What a process takes for any call depends on that: no one of them tells it.
        """
        if kind == 0:
            self.touch()
        elif kind == 1:
            self._invert(self._few[0], out=self._few[1])
        else:
            self._many.neg_()

    def evict(self) -> None:
        """Fill the L2 with other data, by reading; what was to persist there does not."""
        self._forget()
        self._buffer.sum()

    def _forget(self) -> None:
        """Nothing is to persist in the L2. This waits until the device is idle."""
        if self._driver is not None:
            self._driver.cuCtxResetPersistingL2Cache()


def clock_for(device: str, cache_bytes: int) -> WallClock | EventClock:
    """The clock of a device; `cache_bytes` is the size of its last-level cache."""
    return WallClock(cache_bytes) if device == "cpu" else EventClock(cache_bytes)


def _driver() -> Any:
    """The CUDA driver, for the one call that torch does not offer; None on HIP."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
