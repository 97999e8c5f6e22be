"""What a process takes for any call that passes, whatever it does: told by calls of the harness's own.

They pass before a process gets its candidate, when nobody can have them lie, and between the candidate's calls, to see
whether it has changed what all calls take.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from kopt_mcp import stats
from kopt_mcp.evaluator.passage import NotShared, Went
from kopt_mcp.evaluator.timing import KINDS

A_ROUND = 3
"""How many of each kind pass in a process in a round of a look."""
_BEFORE, _MOST_BEFORE, _BEFORE_US, _USABLE_US = 9, 36, 0.2, 1.0
"""How many of each kind pass at least and at most before it gets its candidate, the standard error that is enough of
their average, and the largest with which it says something."""
_TRIES = 30
"""How often one is tried."""
_QUIET, _QUIET_US = 1.15, 3.0
"""How much longer than at best filling and evicting before a call may take, if the device does nothing else."""
SURE = 2.0
"""Standard errors that something may be off."""
_LEVEL = 0.9545
"""What lies within so many of a normal distribution."""
USUAL = 2.0
"""How many times as uncertain as the incumbent's the candidate's times may honestly be."""

Kinds = Sequence[Sequence[Went]]
"""Calls of our own in one process, by kind."""


class Known(NamedTuple):
    """Calls of our own in the processes of both arms."""

    us: float
    """What they take by themselves on average."""
    before: Sequence[Kinds]
    """What they took before the processes got their candidates."""

    @property
    def well(self) -> bool:
        """Whether no more need to pass."""
        return self._doubt <= _BEFORE_US

    @property
    def usable(self) -> bool:
        """Whether it tells enough to look at a gain by it; where it does not, no gain is one, and nobody accused."""
        return self._doubt <= _USABLE_US

    @property
    def _doubt(self) -> float:
        return max(one.error for one in averages(self.before))


class Middle(NamedTuple):
    """A median and its standard error, in microseconds."""

    us: float
    error: float

    @classmethod
    def of(cls, went: Sequence[Went]) -> Middle:
        """Of how long several took. The error is larger for few than their spread says, by Student's t; and infinite
        for fewer than two."""
        times = [one.us for one in went]
        if len(times) < 2:
            return cls(0.0, math.inf)
        few = stats.student(_LEVEL, len(times) - 1) / SURE
        return cls(stats.median(times), few * stats.median_error(times))


def known(arms: Sequence[Callable[[int], Went | None]], us: float, rng: Random) -> Known:
    """Have calls of our own pass in every arm, in random order.

    Raises:
        NotShared; Fault: a process failed.
    """
    went = none_yet(len(arms))
    for count in (_BEFORE, *(A_ROUND,) * ((_MOST_BEFORE - _BEFORE) // A_ROUND)):
        turns = [(which, kind) for which in range(len(arms)) for kind in range(KINDS) for _ in range(count)]
        for which, kind in rng.sample(turns, len(turns)):
            went[which][kind].append(at_last(partial(arms[which], kind)))
        if (made := Known(us, went)).well:
            break
    return made


def none_yet(arms: int = 2) -> list[list[list[Went]]]:
    """Of each arm, for each kind."""
    return [[[] for _ in range(KINDS)] for _ in range(arms)]


def at_last(passes: Callable[[], Went | None]) -> Went:
    """How one went that is tried until it is seen to.

    Raises:
        NotShared: it never is.
    """
    for _ in range(_TRIES):
        if (went := passes()) is not None:
            return went
    raise NotShared


def averages(arms: Sequence[Kinds]) -> list[Middle]:
    """Of all kinds of calls in each process: no one tells what another call takes there."""
    calm = iter(quiet([kind for kinds in arms for kind in kinds]))
    of_kinds = [[Middle.of(next(calm)) for _ in kinds] for kinds in arms]
    return [
        Middle(sum(one.us for one in kinds) / KINDS, math.hypot(*(one.error for one in kinds)) / KINDS)
        for kinds in of_kinds
    ]


def apart(before: Sequence[Middle], now: Sequence[Middle]) -> Middle:
    """By how much calls take longer in the incumbent's process than in the candidate's, whatever is called.

    It is what it was before the candidate came, if it is less now: our own calls may have been slowed. It is the
    average, if it is more by no more than chance makes, and what it is now beyond that: all calls in the candidate's
    process may have been made quicker. Its own calls' ups and downs are no excuse for more doubt than is usual.
    """
    then, since = (arms[1].us - arms[0].us for arms in (before, now))
    of_then, of_now = (math.hypot(*(one.error for one in arms)) for arms in (before, now))
    if since < then:
        return Middle(then, of_then)
    doubt = math.hypot(of_then, of_now)
    usual = USUAL * math.hypot(min(of_then, _BEFORE_US), math.sqrt(2) * now[1].error)
    if since - then <= SURE * min(doubt, usual):
        return Middle((then + since) / 2, doubt / 2)
    return Middle(since, of_now)


def quiet(several: Sequence[Sequence[Went]]) -> list[list[Went]]:
    """What went while the device did nothing else, by how long filling and evicting took before at best, in any."""
    least = min((went.cleared_us for one in several for went in one), default=0.0)
    most = min(_QUIET * least + _QUIET_US, sys.float_info.max)  # infinite is none that the host was in time for
    return [[went for went in one if went.cleared_us <= most] for one in several]
