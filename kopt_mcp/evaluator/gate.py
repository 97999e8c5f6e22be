"""Calls on a GPU between two moments that the harness knows: how long they take by its own clock, and nothing else.

The runner queues a call behind a word in the shared memory on which its stream waits, and before another that its
stream writes. Then its process is stopped. The harness puts values that nobody there has seen into the call's inputs,
evicts the L2 and sets the first word; it waits for the second one with a kernel of its own, which runs when no other
does any more, and behind that spoils the inputs and copies the outputs. All this is queued on the device at once, so
that nobody has it in between, and words in memory of the harness's own say when the first word was set and when its
kernel had run. Before each call the same goes by with next to nothing for a call, which tells what all that takes.

Launching is not in a time, since it came before; but a call that waits for the device itself cannot be stopped: what
its process does until it answers is in its time.
"""

from __future__ import annotations

import mmap
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from kopt_mcp.evaluator import on_device
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.inputs import GUARD, Guarded, draw
from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.queueing import DONE_AT, GO_AT, Stream
from kopt_mcp.evaluator.snapshots import rebuilt
from kopt_mcp.problem import Case, Problem, Spec

_QUEUED_S, _WAITS_S = 0.2, 0.01
"""Longest time for queueing a call: one that waits for the device itself never comes to an end of it. And how long such
a call is given to get to where it waits."""
_PATIENCE = 20
"""How many times as long as it is said to take a call may take before it is given up."""
_MOST_S = 0.5
"""Longest time for a call that takes no time: what it takes is added."""
_BEGIN_AT, _REST_AT = 0, 128
"""Where words lie that the runner cannot write: from when a call may go, and when the device has come to rest."""
Step = Callable[[], None]


class Clears(Protocol):
    """What is needed of a clock; `timing.EventClock` is one."""

    def clear(self, before: Step, after: Step) -> Callable[[], float]:
        """Evict between what the two enqueue; what is returned waits, and says how many microseconds that took."""

    def touch(self) -> None:
        """Enqueue a kernel that does next to nothing."""

    def wait(self) -> None:
        """Until all that was enqueued is over."""


class Values(NamedTuple):
    """What the inputs of a call are drawn from."""

    seed: int
    distribution: str = "normal"


class Went(NamedTuple):
    """What was let go, a call or nothing, in microseconds."""

    us: float
    """From the word to go on until the runner's stream said that it was over."""
    all_us: float
    """The same until the device came to rest."""
    cleared_us: float
    """What filling and evicting took before: more than ever if the device did other work."""


class Passed(NamedTuple):
    """A call that went through the gate."""

    went: Went
    outputs: list[torch.Tensor]
    """As they were then, mutated inputs first; none where they were not to be looked at."""


class NotShared(Exception):
    """A process's memory is of a kind that no other process can be given."""


class Line:
    """One process's words. All its gates share it. Close it."""

    def __init__(self, process: CandidateProcess) -> None:
        """Raises:
        OSError: the device cannot see the shared memory.
        """
        self.process, self.shared = process, process.runner.shared
        self.shared.poke(GO_AT, 0)
        self.shared.poke(DONE_AT, 0)
        self.words = Stream(self.shared.memory)
        self._own = mmap.mmap(-1, mmap.PAGESIZE)
        self.moments = Stream(self._own, 0)
        self.empty: list[Went] = []
        """What has gone without a call."""
        self._ticket = 0

    def close(self) -> None:
        """No gate is used any more."""
        self.words.close()
        self.moments.close()

    def tickets(self) -> tuple[int, int]:
        """For what has no call, and for a call."""
        self._ticket += 2
        return self._ticket - 1, self._ticket

    def when(self, at: int, ticket: int, most_s: float) -> float | None:
        """The moment when a word of the harness's own holds a ticket; None where it never does."""
        return _when(lambda: int.from_bytes(self._own[at : at + 4], sys.byteorder), ticket, most_s)

    def done(self, ticket: int, most_s: float) -> float | None:
        """The moment when the runner's stream has said that it is over; None where it never does."""
        return _when(lambda: self.shared.peek(DONE_AT), ticket, most_s)


class Gate:
    """The gate in front of one candidate's calls on one workload. Close it."""

    def __init__(
        self,
        line: Line,
        driver: on_device.Driver,
        problem: Problem,
        case: Case,
        outputs: list[dict[str, Any]],
        clock: Clears,
        call_us: float = 0.0,
        device: str = "cuda",
    ) -> None:
        """For calls that are said to take `call_us`.

        Raises:
            NotShared; Fault: the candidate failed.
        """
        self._line, self._process, self._driver, self._clock = line, line.process, driver, clock
        self._case, self._device = case, device
        self._mutates, self._free = problem.mutates, {*problem.mutates, *problem.scratch}
        self._at = [position for position, item in enumerate(case.inputs) if isinstance(item, Spec)]
        """Which arguments are tensors."""
        self._most_s = _MOST_S + _PATIENCE * call_us * 1e-6
        self._stops = True
        """Whether a call can be queued, and is over although its process is stopped."""
        self._maps: dict[bytes, tuple[int, int]] = {}
        """Where the candidate's allocations lie here, and their sizes, by their handles: each is mapped once."""
        try:
            self._process.workload(case, outputs)
            described = self._process.ask("hold", distribution="normal", layout="contiguous")["inputs"]
            if described is None:
                raise NotShared
            self._inputs = [driver.view(*self._open(meta)) for meta in described]
            with self._queued(_QUEUED_S):  # so that all memory is there, and nothing needs to be loaded
                pass
            self._places()
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

    def through(self, values: Values, look: bool) -> Passed | None:
        """Let a call pass, and read what it puts out if it is looked at. None where it was not over while its process
        was stopped: that is not tried again, and other values are needed.

        Raises:
            NotShared; Fault: the candidate failed, its outputs are none, or the call is never over.
        """
        drawn = draw(self._case.inputs, self._case.literals, values.seed, self._device, values.distribution)
        passed = self._stopped_call(drawn, look) if self._stops else self._beside(drawn, look)
        self._process.ask("drain")  # nothing may be left on the device that the other's calls would wait for
        return passed

    def _stopped_call(self, drawn: Guarded, look: bool) -> Passed | None:
        """While its process is stopped."""
        went: tuple[Went, float] | None = None
        found: list[_Found] = []
        with self._queued(_QUEUED_S) as (tickets, queued):
            if queued:
                places = [self._place(meta) for meta in self._places()]
                with self._stopped():
                    went = self._call(tickets, drawn, lambda: found.append(self._found(drawn, places)))
        if not queued:
            self._places()
        self._stops = went is not None
        return None if went is None else Passed(went[0], self._outputs(found[0], places, look))

    def _beside(self, drawn: Guarded, look: bool) -> Passed:
        """While its process goes on, which waits for the device in the midst of the call: over when it has answered."""
        with self._queued(_WAITS_S) as (tickets, _):
            went = self._call(tickets, drawn, _nothing)
        places = [self._place(meta) for meta in self._places()]
        if went is None:
            raise Fault("SUSPECT", "its calls take far longer than is claimed by the harness's own clock")
        found = self._found(drawn, places)
        self._clock.wait()
        all_us = (time.perf_counter() - went[1]) * 1e6
        return Passed(went[0]._replace(all_us=all_us), self._outputs(found, places, look))

    @contextmanager
    def _queued(self, longest_s: float) -> Iterator[tuple[tuple[int, int], bool]]:
        """Have a call queued, and before it what has none: their tickets, and whether both are. In the end they go."""
        tickets = self._line.tickets()
        self._process.begin("enqueue", ticket=tickets[0])
        queued = bool(select.select([self._process.runner.channel.fileno()], [], [], longest_s)[0])
        try:
            yield tickets, queued
        finally:
            self._line.shared.poke(GO_AT, tickets[1])

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        turn, pid = self._process.turn, self._process.runner.pid
        turn.halt(pid)
        try:
            yield
        finally:
            turn.release(pid, [])

    def _places(self) -> list[Any]:
        """Where the outputs of the call that was queued will be.

        Raises:
            NotShared; Fault: the candidate failed.
        """
        places: list[Any] | None = self._process.answer("enqueue")["outputs"]
        if places is None:
            raise NotShared
        return places

    def _call(self, tickets: tuple[int, int], drawn: Guarded, then: Step) -> tuple[Went, float] | None:
        """Let go what is queued, first that without a call: how the call went, and when it began; None if it is never
        over."""
        if (empty := self._went(tickets[0], _nothing, _nothing)) is None:
            return None
        self._line.empty.append(empty[0])
        return self._went(tickets[1], lambda: self._fill(drawn), then)

    def _went(self, ticket: int, before: Step, then: Step) -> tuple[Went, float] | None:
        line = self._line

        def after() -> None:
            line.moments.write(_BEGIN_AT, ticket)
            line.words.write(GO_AT, ticket)
            line.words.wait(DONE_AT, ticket)
            self._clock.touch()
            line.moments.write(_REST_AT, ticket)
            then()

        cleared_us = self._clock.clear(before, after)
        begin = line.when(_BEGIN_AT, ticket, self._most_s)
        if (over := line.done(ticket, self._most_s)) is None:
            line.shared.poke(DONE_AT, ticket)  # our own stream must not wait for ever
        rest = line.when(_REST_AT, ticket, self._most_s)
        if begin is None or over is None or rest is None:
            return None
        return Went((over - begin) * 1e6, (rest - begin) * 1e6, cleared_us()), begin

    def _fill(self, drawn: Guarded) -> None:
        """By a kernel: while an engine copies, another process could have the device."""
        for buffer, memory in zip(drawn.buffers, self._inputs, strict=True):
            if buffer.numel() != memory.numel():
                raise Fault("CHEATED", "the candidate's process described inputs of another size")
            torch.bitwise_or(buffer, 0, out=memory)

    def _found(self, drawn: Guarded, places: Sequence[_Place]) -> _Found:
        """What a call has left behind. Enqueued, and not waited for.

        Outputs are copied while the inputs are spoilt: they must be no other addresses of the same memory.
        """
        inputs = list(zip(self._at, drawn.buffers, self._inputs, strict=True))
        intact = [_same(memory, buffer, at in self._free) for at, buffer, memory in inputs]
        changed = {
            at: _argument(memory, drawn.args[at], buffer) for at, buffer, memory in inputs if at in self._mutates
        }
        for memory in self._inputs:
            memory.bitwise_not_()
        outputs = [place.memory.clone() for place in places]
        for memory in self._inputs:
            memory.bitwise_not_()
        return _Found(intact, [changed[at] for at in self._mutates], outputs)

    def _outputs(self, found: _Found, places: Sequence[_Place], look: bool) -> list[torch.Tensor]:
        """What a call has put out, mutated inputs first, if it is looked at; its other inputs must be as they were.

        Raises:
            Fault: they are not, or the outputs are none.
        """
        for position, intact in zip(self._at, found.intact, strict=True):
            if not intact:
                raise Fault("INCORRECT_NUMERICAL", f"a timed call changed its input {position}, or memory beside it")
        return [*found.changed, *rebuilt(found.outputs, [place.lies for place in places])] if look else []

    def _place(self, meta: Any) -> _Place:
        """An output, gaps and all, where it will be."""
        if isinstance(meta, dict) and meta.get("bytes") == 0:
            return _Place(torch.empty(0, dtype=torch.uint8, device=self._device), meta.get("lies"))
        address, size = self._open(meta)
        if meta["dtype"] != "uint8" or len(meta["shape"]) != 1:
            raise Fault("CHEATED", "the runner described an output that is none")
        return _Place(self._driver.view(address, size), meta.get("lies"))

    def _open(self, meta: Any) -> tuple[int, int]:
        """Where something lies here, and its size."""
        handle = on_device.checked(meta)
        if handle not in self._maps:
            try:
                self._maps[handle] = self._driver.open(handle)
            except OSError as error:
                raise Fault("RUNTIME_ERROR", f"its memory cannot be reached: {error.strerror}") from None
        address, size = self._maps[handle]
        if meta["offset"] + meta["bytes"] > size:
            raise Fault("CHEATED", "the runner described memory beyond its end")
        return address + meta["offset"], meta["bytes"]


class _Place(NamedTuple):
    memory: torch.Tensor
    """The bytes themselves."""
    lies: Any
    """How they are to be read, as the runner says."""


class _Found(NamedTuple):
    intact: list[torch.Tensor]
    """Of each input, whether it is as it was, or only what lies beside it if the call may change it."""
    changed: list[torch.Tensor]
    outputs: list[torch.Tensor]


def _same(memory: torch.Tensor, buffer: torch.Tensor, free: bool) -> torch.Tensor:
    if free:
        return ((memory[:GUARD] == buffer[:GUARD]) & (memory[-GUARD:] == buffer[-GUARD:])).all()
    if memory.numel() % 8 == 0:
        memory, buffer = memory.view(torch.int64), buffer.view(torch.int64)
    return (memory == buffer).all()


def _argument(memory: torch.Tensor, like: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """A copy of an argument that lies somewhere as it lies in its buffer."""
    start = like.data_ptr() - buffer.data_ptr()
    data = memory[start : start + like.numel() * like.element_size()].clone()
    return data.view(like.dtype).as_strided(like.shape, like.stride())


def _when(word: Callable[[], int], ticket: int, most_s: float) -> float | None:
    latest = time.perf_counter() + most_s
    while word() != ticket:
        if time.perf_counter() > latest:
            return None
    return time.perf_counter()


def _nothing() -> None:
    return
