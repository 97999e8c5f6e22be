"""Processes of both arms for the harness's own clock, which knows what they take for any call: from before they got
their candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from random import Random

from kopt_mcp.evaluator.arms import Arm, Sampler
from kopt_mcp.evaluator.audit import Known, Pair, known
from kopt_mcp.evaluator.bench import new_seed
from kopt_mcp.evaluator.faults import Fault, IncumbentFault
from kopt_mcp.evaluator.line import Line
from kopt_mcp.evaluator.passage import NotShared, Passage
from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.timing import EventClock

_WAKE_UP = 3


class Pairs:
    """Those of one benchmark: its own, and more where a gain is in doubt."""

    def __init__(
        self,
        stack: ExitStack,
        made: Callable[[], list[CandidateProcess]],
        clock: EventClock,
        known_us: float,
        rng: Random,
    ) -> None:
        """`made` are processes that have not been started, the candidate's first; in the end the stack closes more of
        them. `known_us` is what calls of our own take by themselves."""
        self._stack, self._made, self._clock, self._known_us, self._random = stack, made, clock, known_us, rng
        self._pairs: list[Pair] = []
        self._processes: list[list[CandidateProcess]] = []

    def start(self, processes: list[CandidateProcess]) -> None:
        """Start the next pair, with calls of our own before they load their candidates.

        Raises:
            Fault: see `CandidateProcess.start`.
        """
        each(processes, CandidateProcess.take)
        with processes[0].spent.on("lines"):
            lines = [self._stack.enter_context(closing(Line(process))) for process in processes]
        with processes[0].spent.on("known calls"):
            pair = Pair(lines, self._known(lines))
        each(processes, CandidateProcess.load)
        self._pairs.append(pair)
        self._processes.append(processes)

    def nth(self, sampler: Sampler, number: int) -> Pair | None:
        """One of them, in which both arms have been called on the sampler's workload; None if there is no room."""

        def wake_up(process: CandidateProcess) -> None:
            for _ in range(_WAKE_UP):
                sampler.wake_up(Arm(process), new_seed())

        if number == 0:  # they were timed
            return self._pairs[0]
        with suppress(Fault):
            if number == len(self._pairs):
                self.start([self._stack.enter_context(process) for process in self._made()])
            each(self._processes[number], wake_up)
            return self._pairs[number]
        return None

    def _known(self, lines: Sequence[Line]) -> Known | None:
        passages = [Passage(line, self._clock, candidate=False) for line in lines]
        with suppress(Fault, NotShared):
            return known([one.known for one in passages], self._known_us, self._random)
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
