"""Processes of both arms for the harness's own clock, which knows what they take for any call: from before they got
their candidates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from random import Random

from kopt_mcp.evaluator.arms import Arm, Sampler
from kopt_mcp.evaluator.audit import NO_ROOM, Pair
from kopt_mcp.evaluator.bench import new_seed
from kopt_mcp.evaluator.faults import Fault, IncumbentFault
from kopt_mcp.evaluator.known import known
from kopt_mcp.evaluator.line import Line
from kopt_mcp.evaluator.passage import NotShared, Passage
from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.runners import Place
from kopt_mcp.evaluator.timing import EventClock

_WAKE_UP = 3
_MOST_S = 20.0
"""Longest time for other pairs in all of a benchmark: none is started after that."""


class Pairs:
    """Those of one benchmark: its own, and others where a gain is in doubt."""

    def __init__(
        self,
        place: Place,
        made: Callable[[], list[CandidateProcess]],
        clock: EventClock,
        known_us: float,
        rng: Random,
    ) -> None:
        """`made` are processes that have not been started, the candidate's first; `known_us` is what calls of our own
        take by themselves."""
        self._place, self._made, self._clock, self._known_us, self._random = place, made, clock, known_us, rng
        self._own: list[CandidateProcess] = []
        self._first: Pair | None = None
        self._spent_s = 0.0
        """On others."""

    def start(self, processes: list[CandidateProcess], stack: ExitStack) -> None:
        """Start those that are to be timed. What the stack holds ends before they do.

        Raises:
            Fault: see `CandidateProcess.start`.
        """
        self._own, self._first = processes, self._started(processes, stack)

    @contextmanager
    def nth(self, sampler: Sampler, number: int) -> Iterator[Pair | None]:
        """Those that were timed (0), or others in which both arms have been called on the sampler's workload, and which
        end with this; None if there is no room, or no time, for them.

        Raises:
            Fault: one of them was seen to cheat, or those that were timed have failed.
        """
        if number == 0:
            yield self._first
        elif self._spent_s > _MOST_S:
            yield None
        else:
            begin = time.monotonic()
            # Whatever is wrong with those that were timed is said by whose it is.
            each(self._own, lambda process: process.ask("drain", alone=False))
            self._place.turn.rest()
            with ExitStack() as stack:
                yield self._fresh(sampler, stack)
            self._spent_s += time.monotonic() - begin

    def _fresh(self, sampler: Sampler, stack: ExitStack) -> Pair | None:
        def wake_up(process: CandidateProcess) -> None:
            for _ in range(_WAKE_UP):
                sampler.wake_up(Arm(process), new_seed())

        processes = self._made()
        # At once: nothing may be ending while calls are timed.
        stack.callback(each, processes, CandidateProcess.abandon)
        try:
            pair = self._started(processes, stack)
            each(processes, wake_up)
        except Fault as fault:
            if fault.status not in NO_ROOM:
                raise
            return None
        return pair

    def _started(self, processes: list[CandidateProcess], stack: ExitStack) -> Pair:
        """With calls of our own before they load their candidates; tried twice."""
        pair: Pair | None = None
        for _ in range(2):
            each(processes, CandidateProcess.take)
            with ExitStack() as lines:
                if (pair := self._known(processes, lines)) is not None:
                    stack.enter_context(lines.pop_all())
                    break
            each(processes, CandidateProcess.abandon)
        else:
            each(processes, CandidateProcess.take)
        each(processes, CandidateProcess.load)
        return pair or Pair((), None)

    def _known(self, processes: list[CandidateProcess], stack: ExitStack) -> Pair | None:
        """None where a process, or its line, has failed, which is not its candidate's fault."""
        spent = processes[0].spent
        try:
            with spent.on("lines"):
                lines = [stack.enter_context(closing(Line(process))) for process in processes]
            passages = [Passage(line, self._clock, candidate=False) for line in lines]
            with spent.on("known calls"):
                made = known([one.known for one in passages], self._known_us, self._random)
            if not made.well:  # others may have been starting or ending
                with spent.on("settle"):
                    self._place.spares.settle()
                with spent.on("known calls"):
                    made = known([one.known for one in passages], self._known_us, self._random)
            return Pair(lines, made if made.usable else None)
        except NotShared:
            return Pair(lines, None)
        except (Fault, OSError):
            return None


def each(processes: list[CandidateProcess], step: Callable[[CandidateProcess], object]) -> None:
    """A step of several processes at once; the first is the candidate, and its fault goes before the others'.

    Raises:
        Fault: an `IncumbentFault` if it is not the candidate's.
    """
    with ThreadPoolExecutor(len(processes)) as pool:
        steps = [pool.submit(step, process) for process in processes]
    for made, process in zip(steps, processes, strict=True):
        try:
            made.result()
        except Fault as fault:
            raise (
                fault if process.source == processes[0].source else IncumbentFault(fault.status, fault.detail)
            ) from None
