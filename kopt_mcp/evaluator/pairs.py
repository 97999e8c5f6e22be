"""Processes of both arms for the harness's own clock, which knows what they take for any call: from before they got
their candidates."""

from __future__ import annotations

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

    def start(self, processes: list[CandidateProcess], stack: ExitStack) -> None:
        """Start those that are to be timed. What the stack holds ends before they do.

        Raises:
            Fault: see `CandidateProcess.start`.
        """
        self._own, self._first = processes, self._started(processes, stack)

    @contextmanager
    def nth(self, sampler: Sampler, number: int) -> Iterator[Pair | None]:
        """Those that were timed (0), or others in which both arms have been called on the sampler's workload, and which
        end with this; None if there is no room for them.

        Raises:
            Fault: one of them was seen to cheat.
        """
        if number == 0:
            yield self._first
            return
        with ExitStack() as stack:
            yield self._fresh(sampler, stack)

    def _fresh(self, sampler: Sampler, stack: ExitStack) -> Pair | None:
        def wake_up(process: CandidateProcess) -> None:
            for _ in range(_WAKE_UP):
                sampler.wake_up(Arm(process), new_seed())

        try:
            each(self._own, lambda process: process.ask("drain", alone=False))
            self._place.turn.rest()
            processes = [stack.enter_context(process) for process in self._made()]
            pair = self._started(processes, stack)
            each(processes, wake_up)
        except Fault as fault:
            if fault.status not in NO_ROOM:
                raise
            return None
        return pair

    def _started(self, processes: list[CandidateProcess], stack: ExitStack) -> Pair:
        """With calls of our own before they load their candidates."""
        each(processes, CandidateProcess.take)
        with ExitStack() as lines:
            pair = self._known(processes, lines)
            if pair is None:
                lines.close()
                for process in processes:
                    process.abandon()
                each(processes, CandidateProcess.take)
            stack.enter_context(lines.pop_all())
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
            return Pair(lines, made)
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
