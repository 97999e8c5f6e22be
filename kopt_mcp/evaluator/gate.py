"""Calls on a GPU between two moments that the harness knows: how long they take by its own clock, and nothing else.

The runner queues its calls, each behind a word in the shared memory on which its stream waits, and before another that
its stream writes. Then its process is stopped, and the calls go one by one. The harness puts values that nobody there
has seen into a call's inputs, evicts the L2 and sets the first word, all of it queued on the device at once, so that
nobody else has the device in between. It looks at the second word until that is set, then waits for a kernel of its
own, which runs when the device does nothing else any more, and reads what the call has put out.

What the device takes to change hands, to see the first word and to write the second is in every such time; before each
call goes a pair of words with nothing in between, which tells how long that is. Launching is not in it, since it came
before; but a call that waits for the device itself cannot be stopped: it goes alone, and what its host does after the
wait is in it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from kopt_mcp.evaluator import on_device
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.inputs import Guarded, draw
from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.queueing import DONE_AT, GO_AT, Stream
from kopt_mcp.evaluator.snapshots import rebuilt
from kopt_mcp.problem import Case

_QUEUED_S, _QUEUED_TIMES = 0.01, 3
"""How long queueing may take, and how many times as long as it did at first: a call that waits for the device itself
never comes to an end of it."""
_CLEARED_FIRST, _IN_VAIN_MOST = 5, 50
_IDLE, _IDLE_US = 1.15, 3.0
"""How much longer than at best an eviction takes at the most if the device does nothing else."""
_PATIENCE = 20
"""How many times as long as it is said to take a call may take before it is given up."""
_MOST_S = 0.5
"""Longest time for a call that takes no time: what it takes is added."""
_REST_US = 1000.0
"""How long the device may take to come to rest behind a call: longer, up to the two milliseconds of a time slice, where
several streams of the calls behind it wait already."""
Step = Callable[[], None]


class Times(NamedTuple):
    """Of one call."""

    us: float
    """From the word to go on until the runner's stream said that it was over."""
    all_us: float
    """The same until the device did nothing any more."""
    empty_us: float
    """From the word to go on until the stream said so, with no call between."""
    quiet: bool
    """Whether the device did nothing else before."""


class _Went(NamedTuple):
    us: float
    all_us: float
    quiet: bool


@dataclass(frozen=True)
class Passed:
    """A call that went through the gate."""

    times: Times
    outputs: list[torch.Tensor]
    """As they were then; none where they were not to be looked at."""


class NotShared(Exception):
    """The candidate's memory is of a kind that no other process can be given."""


class Gate:
    """The gate in front of one candidate's calls on one workload. Close it."""

    def __init__(
        self,
        process: CandidateProcess,
        driver: on_device.Driver,
        case: Case,
        mutates: Sequence[int],
        outputs: list[dict[str, Any]],
        count: int,
        clearing: Clearing,
        call_us: float = 0.0,
        device: str = "cuda",
    ) -> None:
        """For up to `count` calls at a time, of which one is said to take `call_us`, and changes the inputs `mutates`.

        Raises:
            NotShared; Fault: the candidate failed; OSError: the device cannot see the shared memory.
        """
        self._process, self._driver, self._case, self._clearing = process, driver, case, clearing
        self._mutates, self._device = mutates, device
        self._most_s = _MOST_S + _PATIENCE * call_us * 1e-6
        self._queued_s = 0.0
        self._stops = self._together = True
        """Whether calls can be queued, and are over although their process is stopped; and whether several can be."""
        self._maps: dict[bytes, tuple[int, int]] = {}
        """Where the candidate's allocations lie here, and their sizes, by their handles: each is mapped once."""
        self._word = process.runner.shared
        self._ticket = self._word.peek(GO_AT)
        """Of the last call that was queued."""
        self._stream = Stream(self._word.memory)
        try:
            process.workload(case, outputs)
            described = process.ask("hold", count=count, distribution="normal", layout="contiguous")["inputs"]
            if not described:
                raise NotShared
            self._inputs = [[self._open(meta) for meta in call] for call in described]
            for _ in range(
                2
            ):  # so that all memory is there, nothing needs to be loaded, and it is known how long it takes
                self._word.poke(GO_AT, self._ticket + 2 * count)
                begin = time.perf_counter()
                self._queue(count)
                self._places(count)
                self._queued_s = time.perf_counter() - begin
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap the candidate's memory."""
        for address, _ in self._maps.values():
            self._driver.close(address)
        self._maps.clear()
        self._stream.close()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def through(self, seeds: list[int], look: bool) -> list[Passed] | None:
        """Let a call pass for each seed; None where they are never over.

        Raises:
            Fault: the candidate failed, its outputs are none, or the device never rests.
        """
        if self._together:
            passed = self._one_by_one(seeds, look)
            self._together = bool(passed) and all(one.times.all_us - one.times.us < _REST_US for one in passed or [])
            if self._together:
                return passed
        if self._stops:
            each = [self._one_by_one([seed], look) for seed in seeds]
            if self._stops:
                return [one for passed in each for one in passed or []]
        return self._each_alone(seeds, look)

    def _one_by_one(self, seeds: list[int], look: bool) -> list[Passed] | None:
        """While their process is stopped; None where they cannot be queued, or are not over then."""
        first, queued = self._queue(len(seeds))
        passed: list[Passed] = []
        if queued:
            places = self._places(len(seeds))
            for meta in (meta for call in places for meta in call):
                self._mapped(meta)  # ahead of time, so as to read at once
            with self._stopped():
                for number, seed in enumerate(seeds):
                    drawn = self._drawn(seed)
                    if (times := self._time(number, drawn, first + 2 * number)) is None:
                        break
                    passed.append(Passed(times, self._read(number, drawn, places[number]) if look else []))
        self._word.poke(GO_AT, self._ticket)
        if not queued:
            self._places(len(seeds))
        self._leave()
        self._stops = len(passed) == len(seeds)
        return passed if self._stops else None

    def _each_alone(self, seeds: list[int], look: bool) -> list[Passed] | None:
        """While their process goes on."""
        passed = []
        for seed in seeds:
            first, _ = self._queue(1)
            drawn = self._drawn(seed)
            times = self._time(0, drawn, first)
            self._word.poke(GO_AT, self._ticket)
            (place,) = self._places(1)
            if times is not None:
                passed.append(Passed(times, self._read(0, drawn, place) if look else []))
            self._leave()
            if times is None:
                return None
        return passed

    def _leave(self) -> None:
        """See that nothing is left on the device that the other's calls would wait for."""
        self._process.ask("drain")

    def _drawn(self, seed: int) -> Guarded:
        return draw(self._case.inputs, self._case.literals, seed, self._device)

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        turn, pid = self._process.turn, self._process.runner.pid
        turn.halt(pid)
        try:
            yield
        finally:
            turn.release(pid, [])

    def _queue(self, count: int) -> tuple[int, bool]:
        """Have calls queued, with two tickets each: the first of these, and whether all calls are."""
        first, self._ticket = self._ticket + 1, self._ticket + 2 * count
        self._process.begin("enqueue", ticket=first, count=count)
        longest_s = _QUEUED_S + _QUEUED_TIMES * self._queued_s
        queued = bool(select.select([self._process.runner.channel.fileno()], [], [], longest_s)[0])
        return first, queued

    def _places(self, count: int) -> list[list[Any]]:
        """Where the outputs of calls that were queued will be.

        Raises:
            NotShared; Fault: the candidate failed.
        """
        places: list[list[Any]] = self._process.answer("enqueue")["outputs"]
        if not places:
            raise NotShared
        if len(places) != count:
            raise Fault("CHEATED", "the candidate's process queued other calls than it was asked for")
        return places

    def _time(self, number: int, drawn: Guarded, ticket: int) -> Times | None:
        """Have a call go that is queued; None where it is never over."""
        empty = self._went(ticket, _nothing)
        full = empty and self._went(ticket + 1, lambda: self._fill(number, drawn))
        if empty is None or full is None:
            return None
        return Times(full.us, full.all_us, empty.us, empty.quiet and full.quiet)

    def _went(self, ticket: int, before: Step) -> _Went | None:
        """Let what waits for a ticket go; None where it is never over."""
        quiet = self._clearing(before, lambda: self._stream.go(ticket))
        if (begin := self._when(GO_AT, ticket)) is None or (over := self._when(DONE_AT, ticket)) is None:
            return None
        self._clearing.rest()
        return _Went((over - begin) * 1e6, (time.perf_counter() - begin) * 1e6, quiet())

    def _when(self, at: int, ticket: int) -> float | None:
        """The moment when a word holds a ticket; None where it never does."""
        latest = time.perf_counter() + self._most_s
        while self._word.peek(at) != ticket:
            if time.perf_counter() > latest:
                return None
        return time.perf_counter()

    def _fill(self, number: int, drawn: Guarded) -> None:
        """By a kernel: while an engine copies, another process could have the device."""
        for buffer, (address, size) in zip(drawn.buffers, self._inputs[number], strict=True):
            if buffer.numel() != size:
                raise Fault("CHEATED", "the candidate's process described inputs of another size")
            torch.bitwise_or(buffer, 0, out=self._driver.view(address, size))

    def _read(self, number: int, drawn: Guarded, described: list[Any]) -> list[torch.Tensor]:
        changed = [self._changed(number, drawn, position) for position in self._mutates]
        return [*changed, *(self._output(meta) for meta in described)]

    def _changed(self, number: int, drawn: Guarded, position: int) -> torch.Tensor:
        """An input as it is now."""
        which = sum(isinstance(a, torch.Tensor) for a in drawn.args[:position])
        tensor, (address, size) = drawn.args[position], self._inputs[number][which]
        start = tensor.data_ptr() - drawn.buffers[which].data_ptr()
        memory = self._driver.view(address, size)[start : start + tensor.numel() * tensor.element_size()]
        return memory.clone().view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def _output(self, meta: Any) -> torch.Tensor:
        data = on_device.copied(self._driver, meta, *self._mapped(meta))
        return rebuilt([data], [meta.get("lies")])[0]

    def _open(self, meta: Any) -> tuple[int, int]:
        """Where an input lies here, and its size."""
        address, size = self._mapped(meta)
        if meta["offset"] + meta["bytes"] > size:
            raise Fault("CHEATED", "the runner described an input beyond the end of its memory")
        return address + meta["offset"], meta["bytes"]

    def _mapped(self, meta: Any) -> tuple[int, int]:
        handle = on_device.checked(meta)
        if handle not in self._maps:
            try:
                self._maps[handle] = self._driver.open(handle)
            except OSError as error:
                raise Fault("RUNTIME_ERROR", f"its memory cannot be reached: {error.strerror}") from None
        return self._maps[handle]


class Clears(Protocol):
    """What is needed of a clock; `timing.EventClock` is one."""

    def clear(self, before: Step, after: Step) -> Callable[[], float]:
        """Evict between what the two enqueue; what is returned waits, and says how many microseconds it took."""

    def touch(self) -> None:
        """Run a kernel that does next to nothing, and wait for it."""


class Clearing:
    """Evicts the L2 from the harness's own context, and sees by that whether the device does anything else.

    Work that a candidate has left on the device would be in the time of the calls that come next, which are another's.
    """

    def __init__(self, clock: Clears) -> None:
        self._clock = clock
        self._least = 0.0
        self._in_vain = 0

    def __call__(self, before: Step, after: Step) -> Callable[[], bool]:
        """Evict between what the two enqueue; what is returned waits, and says whether the device did nothing else.

        Raises:
            Fault: it never does nothing else.
        """
        if self._least == 0.0:
            self._least = min(self._clock.clear(_nothing, _nothing)() for _ in range(_CLEARED_FIRST))
        over = self._clock.clear(before, after)

        def quiet() -> bool:
            us = over()
            self._least = min(self._least, us)
            alone = us <= _IDLE * self._least + _IDLE_US
            self._in_vain = 0 if alone else self._in_vain + 1
            if self._in_vain > _IN_VAIN_MOST:
                raise Fault("DEVICE_BUSY", "the device works while nothing of this evaluation should run there")
            return alone

        return quiet

    def rest(self) -> None:
        """Wait until the device does nothing of anybody's: then it is a kernel of our own that gets it."""
        self._clock.touch()


def _nothing() -> None:
    return
