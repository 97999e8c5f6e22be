"""A claimed gain seen by the harness's own clock: both arms' calls through the gate, alternately.

Whatever a candidate does to the clock, the eviction or the draw in its own process, here it must be faster. Where no
gain is claimed it must not be slower than it claims, before a gain in other workloads can have it accepted. What a
process takes whatever it calls is known from calls of our own, before it got its candidate and again between the calls.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from random import Random
from typing import Any, Literal, NamedTuple, Protocol

from kopt_mcp import stats
from kopt_mcp.evaluator.arms import Arm, Timed
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.gate import Passed, Values
from kopt_mcp.evaluator.known import A_ROUND, SURE, USUAL, Known, Middle, apart, at_last, averages, none_yet, quiet
from kopt_mcp.evaluator.line import Line
from kopt_mcp.evaluator.passage import NotShared, Went
from kopt_mcp.evaluator.records import RESOLUTION_US
from kopt_mcp.evaluator.timing import KINDS

_AUDITED_GAIN = 0.01
"""Share of the incumbent's time that no gain is made of: the bar for accepting one is 1 %."""
_SEEN_SHARE = 0.7
"""Least share of it that must be seen."""
_CALLS = 8
"""How many calls of each arm pass in a round, besides those of our own in its process."""
_SURE_SHARE = 0.1
"""No more rounds are needed where the doubt is below this share of the gain, or all but this share of it is sure."""
_ROUNDS, _PAIRS = 8, 3
"""The most rounds in one pair of processes, and the most pairs where a gain is one by what is seen of it, and not for
sure yet: what our own calls do not tell of a process is different in each, and no more rounds narrow it."""
_CLEAR = 1.1
"""How many times the bar a gain has to be to be worth another pair, and has to be sure to need none."""
_COMPARED = 2
"""How many of the candidate's calls have their outputs compared, besides one that chance chooses: those after which the
device rested first, since a call that left work out is among them."""
_HARD_EVERY = 6
"""In so many of the candidate's calls one is on hard values: which it is stands nowhere in its process, unlike where a
runner draws values itself. Its output is compared; its time does not count."""
_LONGER_US, _LONGER = 5.0, 0.05
"""How much longer than by its own clock the incumbent's calls may take here, and which share of their time. More is
made by something else on the device, as by work that the candidate has left there, and is no gain."""
_UNTOLD_US, _SLACK_US = 0.25, 1.0
"""How far what is seen in one pair of processes is off for good (one sigma), and may be."""
_BY = "by the harness's own clock"
_DOUBT = 3.0
"""Standard errors that the difference may be larger than it was seen; by `SURE` of them less of it is sure."""
How = Literal["gains", "brief", "all"]
"""What is looked into: claimed gains; these, one round each, where none of them can have the candidate accepted because
it has lost another workload; or all workloads, where it might be accepted."""
NO_ROOM = ("OUT_OF_MEMORY", "TIMEOUT", "RUNTIME_ERROR", "COMPILE_ERROR")
"""What is nobody's fault in processes that are started besides those that were timed."""


class Gated(Protocol):
    """A gate in front of one arm's calls; `gate.Gate` is one."""

    def through(self, values: Values, look: bool) -> Passed | None:
        """Let a call pass; None where it needs to be tried again, on other values."""

    def known(self, kind: int) -> Went | None:
        """The same with a call of our own; None where it needs to be tried again."""

    def close(self) -> None:
        """It is needed no more."""


OpenGate = Callable[[Line, list[dict[str, Any]], float, float], Gated]
"""On a line, for what the reference returns, and calls that are said to take so long in either arm, and in this one."""
NthPair = Callable[[int], AbstractContextManager["Pair | None"]]
"""Pairs of processes in which the arms have been called on the workload, by number: the first are those that were
timed, others last as long as they are looked at. None where there is no room for them."""
Blame = Callable[[Arm], AbstractContextManager[None]]
"""In which what goes wrong is an arm's fault."""
Hard = Callable[[], str]
"""A distribution on which short cuts show."""


class Pair(NamedTuple):
    """The processes of both arms, as the harness's own clock needs them."""

    lines: Sequence[Line]
    known: Known | None
    """None where calls of our own could not pass, or were disturbed too much."""


class _Seen:
    """What came through: of each arm all calls, and of the candidate those that are to be compared."""

    def __init__(self, known: Known, rng: Random) -> None:
        self._random, self._known = rng, known
        self._went: list[list[Went]] = [[], []]
        self._now = none_yet()
        self._first: list[Timed] = []
        self._hard: list[Timed] = []
        self._any: Timed | None = None

    @property
    def compared(self) -> list[Timed]:
        """The calls after which the device rested first, one of all, and those on hard values."""
        return [*self._first, *([self._any] if self._any is not None else []), *self._hard]

    def add(self, which: int, values: Values, passed: Passed) -> None:
        """A call of one arm; one on hard values does not count."""
        went = passed.went
        timed = Timed(went.us, went.us, values.seed, passed.outputs, values.distribution)
        if values.distribution != "normal":
            self._hard.append(timed)
            return
        self._went[which].append(went)
        if which == 0:
            self._first = heapq.nsmallest(_COMPARED, [*self._first, timed], key=lambda one: one.us)
            if self._random.randrange(len(self._went[0])) == 0:
                self._any = timed

    def add_known(self, which: int, kind: int, went: Went) -> None:
        """A call of our own in one arm's process."""
        self._now[which][kind].append(went)

    def gain(self, incumbent_us: float) -> _Gain:
        """By how much the candidate's calls are shorter, without what the two processes take for calls of our own.

        What the incumbent's calls take beyond its own times, `incumbent_us`, is not the candidate's doing, or should
        not be: no more if they wait for the device themselves, so that their process cannot be stopped.
        """
        calls = [Middle.of(went) for went in quiet(self._went)]
        before, now = averages(self._known.before), averages(self._now)
        if math.inf in (one.error for one in (*calls, *before, *now)):
            return _Gain(0.0, math.inf, math.inf, math.inf)
        processes = apart(before, now)
        us = calls[1].us - calls[0].us - processes.us
        error = math.hypot(processes.error, *(one.error for one in calls))
        call_us = calls[0].us - min(before[0].us, now[0].us) + self._known.us
        own = incumbent_us * (1 + _LONGER) + _LONGER_US - call_us
        alone = math.hypot(calls[0].error, before[0].error, now[0].error)
        if us >= own:
            us, error = own, alone
        usual = USUAL * math.sqrt(2) * math.hypot(calls[1].error, now[1].error)
        return _Gain(us, error, min(error, usual), call_us + _DOUBT * alone + _SLACK_US)


class _Gain(NamedTuple):
    """In microseconds."""

    us: float
    error: float
    """Standard error."""
    excuse: float
    """The same, with no more of the candidate's ups and downs than is usual: they are no excuse for who makes them."""
    longest: float
    """The most that a call of the candidate's can take by what was seen."""

    @property
    def tells(self) -> bool:
        """Whether calls enough went undisturbed."""
        return math.isfinite(self.error)

    @property
    def sure(self) -> float:
        """What there is of it for sure; it may be less than nothing."""
        return self.us - SURE * self.error

    @classmethod
    def average(cls, gains: Sequence[_Gain]) -> _Gain:
        """Of what was seen in several pairs of processes, with the doubt that our own calls leave of each."""
        count = len(gains)
        us, longest = (sum(values) / count for values in ([g.us for g in gains], [g.longest for g in gains]))
        untold = _UNTOLD_US * math.sqrt(count)
        error, excuse = (math.hypot(untold, *v) / count for v in ([g.error for g in gains], [g.excuse for g in gains]))
        return cls(us, error, excuse, longest)


class Audit:
    """Looks into one workload's claimed gain."""

    def __init__(
        self,
        nth_pair: NthPair,
        open_gate: OpenGate,
        effect: Callable[[float], float],
        seed: Callable[[], int],
        rng: Random,
    ) -> None:
        """`effect` says how far claims of calls that take so long may be off for good, see `Sampler`."""
        self._nth_pair, self._open = nth_pair, open_gate
        self._effect, self._seed, self._random = effect, seed, rng
        self._most_rounds, self._most_pairs = _ROUNDS, _PAIRS
        self.note = ""
        self.sure = self.most = self.highest = math.inf
        """The ratio of incumbent to candidate that is sure by the harness's clock, and the largest that is to be
        reported and that may be, where that clock does not believe what is claimed; else infinite."""
        self.seen, self.error = 1.0, 0.0
        """The ratio that it sees, and its relative standard error; infinite where it could not look."""
        self.longest_us = math.inf
        """The most that a call of the candidate's can take by that clock: who gets the device sooner than calls of our
        own might seem to take no time at all, which no device allows."""

    def look(
        self, arms: Sequence[Arm], ratio: float, outputs: list[dict[str, Any]], blame: Blame, hard: Hard, how: How
    ) -> list[Timed]:
        """See how much there is of a gain, claimed by the ratio or by the times; calls that are still to be compared.

        Raises:
            Fault: `SUSPECT`, too little of it can be seen, or the calls take longer than is claimed.
        """
        candidate, incumbent = (stats.median(arm.samples) for arm in arms)
        candidate = min(candidate, incumbent / ratio)
        if how != "all" and incumbent - candidate <= _AUDITED_GAIN * incumbent:
            return []
        if how == "brief":
            self._most_rounds = self._most_pairs = 1
        claimed = self._claimed(candidate, incumbent, arms)
        compared, gains = self._looks(arms, outputs, blame, claimed, hard)
        if not gains:
            self.error = math.inf
            if incumbent - candidate > _AUDITED_GAIN * incumbent:
                self.sure = self.most = 1.0
            why = "its memory, the incumbent's or the device cannot be had as it has to be"
            self.note = f"nothing is seen {_BY}, so that no gain is sure, here or of all: {why}"
            return compared
        gain = _Gain.average(gains)
        most = gain.us + _DOUBT * gain.excuse + _SLACK_US
        self._take(gain, most, incumbent - candidate, incumbent, claimed)
        if self.note and len(gains) > 1:
            self.note += f", in {len(gains)} pairs of processes"
        if most < (_SEEN_SHARE * claimed if claimed > 0 else claimed):
            with blame(arms[0]):
                raise Fault("SUSPECT", _untrue(claimed, incumbent - candidate, gain.us, most))
        return compared

    def _take(self, gain: _Gain, most: float, difference: float, incumbent: float, claimed: float) -> None:
        """What is made of what was seen, and may be at the most; the calls are said to be shorter by the difference."""
        self.longest_us = gain.longest
        self.sure = _ratio(incumbent, max(gain.sure, 0.0))
        if claimed > 0:
            self.seen = _ratio(incumbent, gain.us)
            self.error = self.seen * gain.error / incumbent
        else:  # what chance may have made is no gain, and no loss as far as the doubt goes
            self.seen = min(1.0, _ratio(incumbent, gain.us + SURE * gain.excuse))
        if difference > gain.us + SURE * gain.excuse + _SLACK_US:
            # Then the clock's own word stands.
            self.most, self.highest = _ratio(incumbent, gain.us), _ratio(incumbent, most)
        if difference > _AUDITED_GAIN * incumbent:
            seen_us = f"{gain.us:.2f} (±{_DOUBT * gain.error:.2f})"
            self.note = f"{seen_us} of {max(claimed, 0):.2f} us gained for sure are seen {_BY}"
        elif self.most < math.inf:
            self.note = f"its calls take {difference - gain.us:.2f} us longer {_BY} than is claimed"

    def _claimed(self, candidate: float, incumbent: float, arms: Sequence[Arm]) -> float:
        """The gain in microseconds that is claimed beyond what chance makes of none; it may be nothing, or less."""
        chance = math.hypot(
            2 * candidate * self._effect(candidate), *(2 * stats.median_error(arm.samples) for arm in arms)
        )
        return incumbent - candidate - chance - _AUDITED_GAIN * incumbent

    def _looks(
        self, arms: Sequence[Arm], outputs: list[dict[str, Any]], blame: Blame, claimed: float, hard: Hard
    ) -> tuple[list[Timed], list[_Gain]]:
        """In as many pairs of processes as there need to be: calls to be compared, and what was seen in each."""
        bar = _AUDITED_GAIN * stats.median(arms[1].samples)
        compared: list[Timed] = []
        gains: list[_Gain] = []
        for number in range(self._most_pairs):
            with self._nth_pair(number) as pair:
                if pair is None:
                    break
                if pair.known is None:
                    continue  # others may tell
                seen = _Seen(pair.known, self._random)
                try:
                    gain = self._look(pair.lines, seen, arms, outputs, blame, claimed, hard)
                except NotShared:
                    break
                except Fault as fault:
                    if number == 0 or fault.status not in NO_ROOM:
                        raise
                    break
                finally:
                    compared += seen.compared
            if not gain.tells:
                continue
            gains.append(gain)
            likely = _Gain.average(gains)
            if claimed <= 0 or not likely.sure < _CLEAR * bar <= likely.us + _SLACK_US:
                break
        return compared, gains

    def _look(
        self,
        lines: Sequence[Line],
        seen: _Seen,
        arms: Sequence[Arm],
        outputs: list[dict[str, Any]],
        blame: Blame,
        claimed: float,
        hard: Hard,
    ) -> _Gain:
        typical = [stats.median(arm.samples) for arm in arms]
        kinds = [None] * _CALLS + [*range(KINDS)] * A_ROUND
        turns = [(which, kind) for which in (0, 1) for kind in kinds]
        with ExitStack() as stack:
            gates: list[Gated] = []
            for line, arm, own in zip(lines, arms, typical, strict=True):
                with blame(arm):
                    gates.append(stack.enter_context(closing(self._open(line, outputs, max(typical), own))))
            for _ in range(self._most_rounds):
                for which, kind in self._random.sample(turns, len(turns)):
                    with blame(arms[which]):
                        if kind is None:
                            self._pass(which, gates[which], hard, seen)
                        else:
                            seen.add_known(which, kind, at_last(partial(gates[which].known, kind)))
                gain = seen.gain(typical[1])
                if _enough(gain, claimed, _AUDITED_GAIN * typical[1]):
                    break
        return gain

    def _pass(self, which: int, gate: Gated, hard: Hard, seen: _Seen) -> None:
        is_hard = which == 0 and self._random.random() < 1 / _HARD_EVERY
        distribution = hard() if is_hard else "normal"
        passed = None
        while passed is None:
            values = Values(self._seed(), distribution)
            passed = gate.through(values, look=which == 0)
        seen.add(which, values, passed)


def _enough(gain: _Gain, claimed: float, bar: float) -> bool:
    """Whether more rounds would narrow what is sure and change nothing: nothing would be made of it, or all that could
    be is sure already, without a doubt (who looks often finds what chance makes sooner or later), or what they narrow
    is small beside what they do not."""
    if not gain.tells:
        return False
    if claimed <= 0 or _DOUBT * gain.error < _SURE_SHARE * claimed or SURE * gain.error < _UNTOLD_US:
        return True
    whole = _Gain.average([gain])
    return gain.sure >= (1 - _SURE_SHARE) * claimed and whole.us - _DOUBT * whole.error >= _CLEAR * bar


def _untrue(claimed: float, difference: float, seen: float, most: float) -> str:
    """What is wrong with a claim of which so much is seen, and so much may be there at the most."""
    if claimed > 0:
        what = f"a gain of {claimed:.2f} us a call is claimed, of which the harness's own clock sees {seen:.2f} us"
        return f"{what}, or {most:.2f} us at the most"
    longer = f"its calls take {difference - seen:.2f} us longer by the harness's own clock than is claimed"
    return f"{longer}, and {claimed - most:.2f} us more than may be by chance"


def _ratio(incumbent: float, gain: float) -> float:
    """Of the incumbent's time to one that is shorter by so much."""
    return incumbent / max(incumbent - gain, RESOLUTION_US)
