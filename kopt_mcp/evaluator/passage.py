"""One process gets a GPU between two moments that the harness knows, for a call of its candidate's or one of our own.

The runner queues a call behind a word in the shared memory on which its stream waits. Then its process is stopped. The
harness evicts the L2 and sets that word; then it lets go of the device, and wants it back with a kernel of its own,
which runs when no other does any more. Words in memory of the harness's own say when the first word was set and when
its kernel had run, and nothing that the runner queues before its call or behind it is in the time: what it could leave
out there would look like a gain.

All that takes some 300 us more than the call, which differs between processes by up to 3 us for as long as they live
(on an H200; no two contexts are the same to the device): what it is in one, calls of our own tell, best before any
candidate is there.

Launching is not in a time, since it came before. A call about as long as a time slice of the device (`_LONG_US`) must
say itself that it is over, since the device would be had back in the midst of it: what it could save by saying so early
is a few microseconds.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.line import BACK_AT, BEGIN_AT, REST_AT, Line
from kopt_mcp.evaluator.queueing import DONE_AT, GO_AT

QUEUED_S, _FIRST_QUEUED_S = 0.2, 20.0
"""Longest time for queueing a call: one that waits for the device itself never comes to an end of it. And where there
is no candidate, but a driver that may be busy with the ends of other processes."""
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
"""How many passes in a row may tell no time before calls have to say themselves that they are over, and once more; no
more where there is no candidate."""
Step = Callable[[], None]


class Clears(Protocol):
    """What is needed of a clock; `timing.EventClock` is one."""

    def clear(self, before: Step, after: Step) -> Callable[[], float]:
        """Evict between what the two enqueue; what is returned waits, and says how many microseconds that took."""

    def touch(self) -> None:
        """Enqueue a kernel that does next to nothing."""

    def wait(self) -> None:
        """Until all that was enqueued is over."""


class Went(NamedTuple):
    """What was let go, in microseconds."""

    us: float
    """From the word to go on until the device came to rest."""
    cleared_us: float
    """What filling and evicting took before: more than ever if the device did other work."""


class Gone(NamedTuple):
    """The same, as far as it is known before the device is waited for."""

    begin: float
    rest: float
    hung: bool
    """Whether the harness waited for the device while it queued."""
    cleared_us: Callable[[], float]


class NotShared(Exception):
    """A process's memory, or the device, cannot be had as it has to be."""


class Passage:
    """Lets what one process has queued have the device, and has it back."""

    def __init__(self, line: Line, clock: Clears, call_us: float = 0.0, candidate: bool = True) -> None:
        """For calls that are said to take up to `call_us`; where there is no `candidate` yet, nothing is stopped."""
        self.process, self._line, self._clock = line.process, line, clock
        self._candidate = candidate
        self._most_s = _MOST_S + _PATIENCE * call_us * 1e-6
        self._tells = call_us > _LONG_US
        """Whether a call says itself that it is over, and the device is wanted back then."""
        self._lost = 0
        """How many passes in a row told no time, because of the harness."""

    def known(self, kind: int) -> Went | None:
        """What a call of our own takes, see `EventClock.known`; None where that was not seen.

        Raises:
            NotShared; Fault: the process failed.
        """
        gone: Gone | None = None
        with self.queued(QUEUED_S if self._candidate else _FIRST_QUEUED_S, kind) as (ticket, queued):
            if queued:
                self.process.answer("enqueue")
                with self.stopped():
                    gone = self.go(ticket, _nothing, _nothing)
        if not queued:
            self.process.answer("enqueue")
            raise Fault("SUSPECT", "its process does not queue a call that is not its candidate's")
        return self.went(gone)

    @contextmanager
    def queued(self, longest_s: float, known: int | None = None) -> Iterator[tuple[int, bool]]:
        """Have a call queued, the candidate's or one of our own: its ticket, and whether it is. In the end all that is
        queued goes."""
        ticket = self._line.ticket()
        self.process.begin("enqueue", self._candidate, ticket=ticket, known=known, tells=self._tells)
        queued = bool(select.select([self.process.runner.channel.fileno()], [], [], longest_s)[0])
        try:
            yield ticket, queued
        finally:
            self._line.shared.poke(GO_AT, ticket + 1)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """With the process at rest, and all others, if there is a candidate in it.

        Raises:
            Fault: `CHEATED`, one of them went on.
        """
        if not self._candidate:
            yield
            return
        turn, pid = self.process.turn, self.process.runner.pid
        strays = turn.freeze(pid)
        try:
            yield
            turn.require_rest()
        finally:
            turn.release(pid, strays)

    def go(self, ticket: int, before: Step, then: Step) -> Gone | None:
        """Let go what is queued, between what the two enqueue here: how it went; None if it is never over."""
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
        return Gone(begin, rest, hung.is_set(), cleared_us)

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

    def went(self, gone: Gone | None, least_us: float = 0.0) -> Went | None:
        """How long it took, if the device was away, was wanted back in time, and not had back in the midst of a call:
        where time slices are shorter than they are known to be, it rests before a call can be over.

        Raises:
            NotShared: too often in a row it was not.
        """
        if gone is None:
            return None
        us = (gone.rest - gone.begin) * 1e6
        if not gone.hung and (us >= max(_KEPT_US, least_us) or self._tells):
            self._lost = 0
            return Went(us, gone.cleared_us())
        self._lost += 1
        if self._lost > _LOST_MOST:
            if self._tells or not self._candidate:
                raise NotShared
            self._tells, self._lost = True, 0
        return None


def _nothing() -> None:
    return
