"""Calls on a GPU between two moments that the harness knows: how long they take by its own clock, and nothing else.

The runner queues a call behind a word in the shared memory on which its stream waits. Then its process is stopped. The
harness puts values that nobody there has seen into the call's inputs, evicts the L2 and sets that word; then it lets go
of the device, and wants it back with a kernel of its own, which runs when no other does any more, and behind that
spoils the inputs and copies the outputs. Words in memory of the harness's own say when the first word was set and when
its kernel had run, and nothing that the runner queues before its call or behind it is in the time: what it could leave
out there would look like a gain. Now and then the same goes by with next to nothing for a call, which tells what all
that takes.

Launching is not in a time, since it came before; but a call that waits for the device itself cannot be stopped: what
its process does until it answers is in its time. And a call about as long as a time slice of the device (`_LONG_US`)
must say itself that it is over, since the device would be had back in the midst of it: what it could save by saying so
early is a few microseconds.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from kopt_mcp.evaluator import on_device
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.inputs import GUARD, Guarded, draw
from kopt_mcp.evaluator.line import BACK_AT, BEGIN_AT, REST_AT, Line
from kopt_mcp.evaluator.queueing import DONE_AT, GO_AT
from kopt_mcp.evaluator.snapshots import rebuilt
from kopt_mcp.problem import Case, Problem, Spec

_QUEUED_S, _WAITS_S = 0.2, 0.01
"""Longest time for queueing a call: one that waits for the device itself never comes to an end of it. And how long such
a call is given to get to where it waits."""
_PATIENCE = 20
"""How many times as long as it is said to take a call may take before it is given up."""
_MOST_S = 0.5
"""Longest time for a call that takes no time: what it takes is added."""
_LONG_US = 1000.0
"""From here on a call says itself that it is over: half a time slice, after which the device changes hands anyway."""
_AWAY_US, _KEPT_US = 70.0, 100.0
"""When the harness wants the device back, which takes about 150 us to get to the runner (on an H200): after that it
has let go, and before a call is over. And within what time it has never been away."""
_HUNG_S = 0.05
"""After that, what the harness queues waits for the device."""
_LOST_MOST = 12
"""How many passes in a row may tell no time before calls have to say themselves that they are over, and once more."""
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
    """From the word to go on until the device came to rest."""
    cleared_us: float
    """What filling and evicting took before: more than ever if the device did other work."""


class Passed(NamedTuple):
    """A call that went through the gate."""

    went: Went
    outputs: list[torch.Tensor]
    """As they were then, mutated inputs first; none where they were not to be looked at."""


class NotShared(Exception):
    """A process's memory, or the device, cannot be had as it has to be."""


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
        own_us: float = 0.0,
        device: str = "cuda",
    ) -> None:
        """For calls that are said to take `own_us` here, and up to `call_us` in either arm.

        Raises:
            NotShared; Fault: the candidate failed.
        """
        self._line, self._process, self._driver, self._clock = line, line.process, driver, clock
        self._case, self._device = case, device
        self._mutates, self._free = problem.mutates, {*problem.mutates, *problem.scratch}
        self._at = [position for position, item in enumerate(case.inputs) if isinstance(item, Spec)]
        """Which arguments are tensors."""
        self._most_s = _MOST_S + _PATIENCE * call_us * 1e-6
        self._own_us, self._tells = own_us, call_us > _LONG_US
        """Whether a call says itself that it is over, and the device is wanted back then."""
        self.stops = True
        """Whether a call can be queued, and is over although its process is stopped."""
        self._lost = 0
        """How many passes in a row told no time, because of the harness."""
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
        """Let a call pass, and read what it puts out if it is looked at. None where it was not seen to go while its
        process was stopped: that is not tried again, and other values are needed.

        Raises:
            NotShared; Fault: the candidate failed, its outputs are none, or the call is never over.
        """
        drawn = draw(self._case.inputs, self._case.literals, values.seed, self._device, values.distribution)
        passed = self._stopped_call(drawn, look) if self.stops else self._beside(drawn, look)
        self._process.ask("drain")  # nothing may be left on the device that the other's calls would wait for
        return passed

    def nothing(self) -> Went | None:
        """The same with next to nothing for a call; None where that was not seen.

        Raises:
            Fault: the candidate failed.
        """
        with self._queued(_QUEUED_S, call=False) as (ticket, queued):
            if not queued:
                raise Fault("SUSPECT", "its process queues nothing where nothing is called")
            self._places()
            with self._stopped():
                gone = self._go(ticket, _nothing, _nothing)
        return self._went(gone)

    def _stopped_call(self, drawn: Guarded, look: bool) -> Passed | None:
        """While its process is stopped."""
        gone: _Gone | None = None
        found: list[_Found] = []
        with self._queued(_QUEUED_S) as (ticket, queued):
            if queued:
                places = [self._place(meta) for meta in self._places()]
                with self._stopped():
                    gone = self._go(ticket, lambda: self._fill(drawn), lambda: found.append(self._found(drawn, places)))
        if not queued:
            self._places()
        self.stops = gone is not None
        went = self._went(gone, self._own_us)
        return None if went is None else Passed(went, self._outputs(found[0], places, look))

    def _beside(self, drawn: Guarded, look: bool) -> Passed:
        """While its process goes on, which waits for the device in the midst of the call: over when it has answered."""
        with self._queued(_WAITS_S) as (ticket, _):
            gone = self._go(ticket, lambda: self._fill(drawn), _nothing)
        places = [self._place(meta) for meta in self._places()]
        if gone is None:
            raise Fault("SUSPECT", "its calls take far longer than is claimed by the harness's own clock")
        found = self._found(drawn, places)
        self._clock.wait()
        went = Went((time.perf_counter() - gone.begin) * 1e6, gone.cleared_us())
        return Passed(went, self._outputs(found, places, look))

    @contextmanager
    def _queued(self, longest_s: float, call: bool = True) -> Iterator[tuple[int, bool]]:
        """Have a call queued, or nothing: its ticket, and whether it is. In the end all that is queued goes."""
        ticket = self._line.ticket()
        self._process.begin("enqueue", ticket=ticket, call=call, tells=self._tells)
        queued = bool(select.select([self._process.runner.channel.fileno()], [], [], longest_s)[0])
        try:
            yield ticket, queued
        finally:
            self._line.shared.poke(GO_AT, ticket + 1)

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        turn, pid = self._process.turn, self._process.runner.pid
        strays = turn.freeze(pid)
        try:
            yield
            turn.require_rest()
        finally:
            turn.release(pid, strays)

    def _places(self) -> list[Any]:
        """Where the outputs of the call that was queued will be.

        Raises:
            NotShared; Fault: the candidate failed.
        """
        places: list[Any] | None = self._process.answer("enqueue")["outputs"]
        if places is None:
            raise NotShared
        return places

    def _go(self, ticket: int, before: Step, then: Step) -> _Gone | None:
        """Let go what is queued: how it went; None if it is never over."""
        line = self._line

        def after() -> None:
            line.moments.write(BEGIN_AT, ticket)
            line.words.write(GO_AT, ticket)
            if self._tells:
                line.words.wait(DONE_AT, ticket)
            else:
                line.moments.wait(BACK_AT, ticket)
            self._clock.touch()
            line.moments.write(REST_AT, ticket)
            then()

        with self._back_at_last(ticket) as hung:
            cleared_us = self._clock.clear(before, after)
        begin = line.when(BEGIN_AT, ticket, self._most_s)
        if self._tells and not line.done(ticket, self._most_s):
            line.shared.poke(DONE_AT, ticket)  # our own stream must not wait for ever
            return None
        while begin is not None and time.perf_counter() < begin + _AWAY_US * 1e-6:
            pass
        line.want_back(ticket)
        rest = line.when(REST_AT, ticket, self._most_s)
        line.shared.poke(GO_AT, ticket + 1)
        if not line.done(ticket, self._most_s) or begin is None or rest is None:
            return None
        return _Gone(begin, rest, hung.is_set(), cleared_us)

    @contextmanager
    def _back_at_last(self, ticket: int) -> Iterator[threading.Event]:
        """What is queued in here may wait for the device, as all does that loads a kernel, and must not do so for ever;
        whether it did."""
        hung = threading.Event()

        def back() -> None:
            hung.set()
            self._line.want_back(ticket)
            self._line.shared.poke(DONE_AT, ticket)

        timer = threading.Timer(_HUNG_S, back)
        timer.start()
        try:
            yield hung
        finally:
            timer.cancel()
            timer.join()

    def _went(self, gone: _Gone | None, least_us: float = 0.0) -> Went | None:
        """How long it took, if the device was away, was wanted back in time, and not had back in the midst of a call:
        where time slices are shorter than they are known to be, it rests before a call can be over."""
        if gone is None:
            return None
        us = (gone.rest - gone.begin) * 1e6
        if not gone.hung and (us >= max(_KEPT_US, least_us) or self._tells):
            self._lost = 0
            return Went(us, gone.cleared_us())
        self._lost += 1
        if self._lost > _LOST_MOST:
            if self._tells:
                raise NotShared
            self._tells, self._lost = True, 0
        return None

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


class _Gone(NamedTuple):
    begin: float
    rest: float
    hung: bool
    """Whether the harness waited for the device while it queued."""
    cleared_us: Callable[[], float]


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


def _nothing() -> None:
    return
