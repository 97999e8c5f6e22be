"""Calls on a GPU between two moments that the harness knows: how long they take by its own clock, and nothing else.

The runner queues its calls, each behind a word in the shared memory on which its stream waits, and before another that
its stream writes. Then its process is stopped, and the calls go one by one. The harness puts values that nobody there
has seen into a call's inputs, evicts the L2 and sets the first word; behind that it waits for the second one with a
kernel of its own, which gets the device when no kernel of the candidate's has it, and sets a third. All this is queued
on the device at once, so that nobody else has the device in between. The clock runs from the first word to the third;
then the inputs must be as they were, and the outputs are read. What is known to get past this stands in the README.

What the device takes to change hands and to see words is in every such time: before the calls go pairs of words with
next to nothing in between, which tell how long that is. Launching is not in it, since it came before; but a call that
waits for the device itself cannot be stopped: it goes alone, and what its host does after the wait is in it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from kopt_mcp.evaluator import on_device
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.inputs import GUARD, Guarded, draw
from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.queueing import DONE_AT, EMPTY, GO_AT, REST_AT, Stream
from kopt_mcp.evaluator.snapshots import rebuilt
from kopt_mcp.problem import Case, Problem

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


class Values(NamedTuple):
    """What the inputs of a call are drawn from."""

    seed: int
    distribution: str = "normal"


class Went(NamedTuple):
    """What was let go, a call or nothing."""

    us: float
    """Microseconds from the word to go on until the runner's stream said that it was over."""
    all_us: float
    """The same until the device did nothing any more."""
    quiet: bool
    """Whether the device did nothing else before."""


class Passed(NamedTuple):
    """A call that went through the gate."""

    went: Went
    outputs: list[torch.Tensor]
    """As they were then, mutated inputs first; none where they were not to be looked at."""


class NotShared(Exception):
    """A process's memory is of a kind that no other process can be given."""

    def __str__(self) -> str:
        return "a process's memory cannot be given to another"


class Line:
    """One process's words, and what has passed between them without a call. All its gates share it. Close it."""

    def __init__(self, process: CandidateProcess) -> None:
        """Raises:
        OSError: the device cannot see the shared memory.
        """
        self.process, self.word = process, process.runner.shared
        self.stream = Stream(self.word.memory)
        self.empty: list[Went] = []

    def close(self) -> None:
        """No gate is used any more."""
        self.stream.close()


class Gate:
    """The gate in front of one candidate's calls on one workload. Close it."""

    def __init__(
        self,
        line: Line,
        driver: on_device.Driver,
        problem: Problem,
        case: Case,
        outputs: list[dict[str, Any]],
        count: int,
        clearing: Clearing,
        call_us: float = 0.0,
        device: str = "cuda",
    ) -> None:
        """For up to `count` calls at a time, of which one is said to take `call_us`.

        Raises:
            NotShared; Fault: the candidate failed.
        """
        self._line, self._process, self._word = line, line.process, line.word
        self._driver, self._case, self._clearing = driver, case, clearing
        self._mutates, self._free = problem.mutates, {*problem.mutates, *problem.scratch}
        self._device = device
        self._most_s = _MOST_S + _PATIENCE * call_us * 1e-6
        self._queued_s = 0.0
        self._stops = self._together = True
        """Whether calls can be queued, and are over although their process is stopped; and whether several can be."""
        self._maps: dict[bytes, tuple[int, int]] = {}
        """Where the candidate's allocations lie here, and their sizes, by their handles: each is mapped once."""
        try:
            self._process.workload(case, outputs)
            self._inputs = self._hold(count)
            begin = time.perf_counter()
            self._queue(count, waiting=False)  # so that all memory is there, and nothing needs to be loaded
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

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self, count: int) -> list[list[tuple[int, int]]]:
        """Where the inputs of calls lie."""
        described = self._process.ask("hold", count=count, distribution="normal", layout="contiguous")["inputs"]
        if not described:
            raise NotShared
        return [[self._open(meta) for meta in call] for call in described]

    def through(self, values: list[Values], look: bool) -> list[Passed] | None:
        """Let a call pass on each values, and read what they put out if it is looked at; None where one is never over.

        Raises:
            NotShared; Fault: the candidate failed, its outputs are none, or the device never rests.
        """
        if self._together:
            passed = self._one_by_one(values, look)
            self._together = passed is not None and all(c.went.all_us - c.went.us < _REST_US for c in passed)
            if self._together:
                return passed
        if self._stops:
            each = [self._one_by_one([one], look) for one in values]
            if self._stops:
                return _joined(each)
        return _joined([self._beside(one, look) for one in values])

    def _one_by_one(self, values: list[Values], look: bool) -> list[Passed] | None:
        """While their process is stopped; None where they cannot be queued, or are not over then."""
        tickets, queued = self._queue(len(values))
        passed: list[Passed] | None = None
        try:
            if queued:
                places = self._places(len(values))
                for meta in (meta for call in places for meta in call):
                    self._mapped(meta)  # ahead of time, so as to read at once
                with self._stopped():
                    passed = self._passage(tickets, values, look, lambda number: places[number])
        finally:
            self._word.poke(GO_AT, tickets[-1])  # nothing may be left waiting
        if not queued:
            self._places(len(values))
        self._leave()
        self._stops = passed is not None
        return passed

    def _beside(self, values: Values, look: bool) -> list[Passed] | None:
        """While its process goes on, which waits for the device in the midst of the call."""
        tickets, _ = self._queue(1)
        passed = self._passage(tickets, [values], look, lambda _: self._places(1)[0])
        if passed is None:
            self._word.poke(GO_AT, tickets[-1])
            self._places(1)
        self._leave()
        return passed

    def _passage(
        self, tickets: range, values: list[Values], look: bool, place: Callable[[int], list[Any]]
    ) -> list[Passed] | None:
        """Let go what is queued, first that without a call; None where something is never over."""
        for ticket in tickets[:EMPTY]:
            if (empty := self._went(ticket, _nothing)) is None:
                return None
            self._line.empty += [empty] if empty.quiet else []
        passed = []
        for number, ticket in enumerate(tickets[EMPTY:]):
            drawn = draw(
                self._case.inputs, self._case.literals, values[number].seed, self._device, values[number].distribution
            )
            if (went := self._went(ticket, lambda n=number, d=drawn: self._fill(n, d))) is None:  # type: ignore[misc]
                return None
            passed.append(Passed(went, self._read(number, drawn, place(number), look)))
        return passed

    def _leave(self) -> None:
        """See that nothing is left on the device that the other's calls would wait for."""
        self._process.ask("drain")

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        turn, pid = self._process.turn, self._process.runner.pid
        turn.halt(pid)
        try:
            yield
        finally:
            turn.release(pid, [])

    def _queue(self, count: int, waiting: bool = True) -> tuple[range, bool]:
        """Have so many calls queued, and before them what has no call: their tickets, and whether all are."""
        first = self._word.peek(GO_AT) + 1
        tickets = range(first, first + EMPTY + count)
        if not waiting:
            self._word.poke(GO_AT, tickets[-1])
        self._process.begin("enqueue", ticket=first, count=count)
        longest_s = _QUEUED_S + _QUEUED_TIMES * self._queued_s
        return tickets, bool(select.select([self._process.runner.channel.fileno()], [], [], longest_s)[0])

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

    def _went(self, ticket: int, before: Step) -> Went | None:
        """Let what waits for a ticket go; None where it is never over."""

        def after() -> None:
            self._line.stream.write(GO_AT, ticket)
            self._line.stream.wait(DONE_AT, ticket)
            self._clearing.touch()
            self._line.stream.write(REST_AT, ticket)

        quiet = self._clearing(before, after)
        moments = [self._when(at, ticket) for at in (GO_AT, DONE_AT, REST_AT)]
        self._word.poke(DONE_AT, ticket)  # where it never came, our own stream must not wait for ever
        begin, over, rest = moments
        if begin is None or over is None or rest is None:
            return None
        return Went((over - begin) * 1e6, (rest - begin) * 1e6, quiet())

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

    def _read(self, number: int, drawn: Guarded, places: list[Any], look: bool) -> list[torch.Tensor]:
        """The outputs of a call, if they are looked at. In any case its inputs must be as they were.

        Raises:
            Fault: they are not, or the outputs are none.
        """
        at = [i for i, a in enumerate(drawn.args) if isinstance(a, torch.Tensor)]
        views = [self._driver.view(*place) for place in self._inputs[number]]
        for position, buffer, view in zip(at, drawn.buffers, views, strict=True):
            parts = [slice(GUARD), slice(-GUARD, None)] if position in self._free else [slice(None)]
            if not all(torch.equal(view[part], buffer[part]) for part in parts):
                raise Fault("INCORRECT_NUMERICAL", f"a timed call changed its input {position}, or memory beside it")
        if not look:
            return []
        changed = [_typed(views[at.index(i)].clone(), drawn.args[i], drawn.buffers[at.index(i)]) for i in self._mutates]
        for position, view in zip(at, views, strict=True):
            if position not in self._free:
                view.bitwise_not_()  # outputs must be copies, not other addresses of the same memory
        return [*changed, *(self._output(meta) for meta in places)]

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


def _joined(parts: list[list[Passed] | None]) -> list[Passed] | None:
    return None if None in parts else [one for part in parts for one in part or []]


def _typed(memory: torch.Tensor, like: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """An argument in a copy of the buffer in which it lies."""
    start = like.data_ptr() - buffer.data_ptr()
    data = memory[start : start + like.numel() * like.element_size()]
    return data.view(like.dtype).as_strided(like.shape, like.stride())


class Clears(Protocol):
    """What is needed of a clock; `timing.EventClock` is one."""

    def clear(self, before: Step, after: Step) -> Callable[[], float]:
        """Evict between what the two enqueue; what is returned waits, and says how many microseconds it took."""

    def touch(self) -> None:
        """Enqueue a kernel that does next to nothing."""


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

    def touch(self) -> None:
        """Enqueue a kernel of our own, which gets the device when nobody else uses it."""
        self._clock.touch()


def _nothing() -> None:
    return
