"""A claimed gain seen by the harness's own clock: both arms' calls through the gate, alternately.

Whatever a candidate does to the clock, the eviction or the draw in its own process, here it must be faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import torch

from kopt_mcp import stats
from kopt_mcp.evaluator.arms import Arm, Timed
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.gate import Passage
from kopt_mcp.evaluator.watching import same_bits

_AUDITED_GAIN = 0.01
"""Share of the incumbent's time that no gain is made of: the bar for accepting one is 1 %."""
_SEEN_SHARE = 0.5
"""Least share of it that must be seen. Not all: calls that follow each other closely need not take what each takes
alone."""
_PASSAGES, _ROUNDS, _SURE_SHARE = 9, 2, 0.25
"""How often each arm's calls pass in a round, and the most rounds; one is enough where the doubt is below this share of
the gain."""
_PASS_US, _FEWEST_CALLS, _MOST_CALLS = 400.0, 16, 32
"""How long a passage should take beside what the gate itself takes, how many calls it has if there is room for them,
whether or not the cache has room for their outputs, and the most."""
_LOOKED_AT, _CHEAP_BYTES = (2, 3), 4 << 20
"""Of the first arm's passages, how many have their outputs compared, and up to which size of these it is more."""
_BY = "by the harness's own clock"
_DOUBT = 3.0
"""Standard errors that the difference may be larger than it was seen."""


class Gated(Protocol):
    """A gate in front of one arm's calls; `gate.Gate` is one."""

    distinct: bool
    """Whether each call has outputs of its own."""

    def through(self, seeds: list[int], look: bool) -> Passage | None:
        """Let calls pass; None where they cannot be held back."""

    def at_once(self, seeds: list[int], look: bool) -> Passage | None:
        """The same without holding them back, from when they are asked for; None where they are never over."""

    def close(self) -> None:
        """It is needed no more."""


@dataclass(frozen=True)
class Room:
    """How much may be queued at once."""

    input_bytes: int
    cache_bytes: int
    most_bytes: int

    def calls(self, us: float, output_bytes: int) -> int:
        """How many calls that take `us`; if many, their outputs stay in the cache, as those of a call alone would."""
        cached = self.cache_bytes // 4 // max(1, output_bytes)
        fitting = self.most_bytes // max(1, self.input_bytes + output_bytes)
        return max(1, min(_MOST_CALLS, math.ceil(_PASS_US / us), max(_FEWEST_CALLS, cached), fitting))


OpenGate = Callable[[Arm, list[dict[str, Any]], int], Gated]
"""For an arm, what the reference returns, and how many calls are to pass at once."""
Blame = Callable[[Arm], AbstractContextManager[None]]
"""In which what goes wrong is an arm's fault."""


class Audit:
    """Looks into one workload's claimed gain."""

    def __init__(
        self,
        open_gate: OpenGate,
        room: Room,
        effect: Callable[[float], float],
        seed: Callable[[], int],
        rng: Random,
    ) -> None:
        """`effect` says how far claims of calls that take so long may be off for good, see `Sampler`."""
        self._open, self._room, self._effect, self._seed, self._random = open_gate, room, effect, seed, rng
        self._count = self._looks = 1
        self.note = ""
        self.seen: float | None = None
        """Microseconds of the gain that are seen for a call; None where nothing was looked into."""

    def look(self, arms: Sequence[Arm], outputs: list[dict[str, Any]], blame: Blame) -> list[Timed]:
        """See how much of the first arm's gain over the second there is; its calls that are still to be compared.

        Raises:
            Fault: `SUSPECT`, too little of it can be seen.
        """
        candidate, incumbent = (stats.median(arm.samples) for arm in arms)
        if incumbent - candidate <= _AUDITED_GAIN * incumbent:
            return []
        claimed = self._claimed(candidate, incumbent, arms)
        size = sum(o["bytes"] for o in outputs)
        self._count, self._looks = self._room.calls(candidate, size), _LOOKED_AT[size <= _CHEAP_BYTES]
        try:
            looked_at = self._looked(arms, outputs, blame, claimed)
            if looked_at is None:  # calls that share their outputs pass one by one, so that each can be looked at
                self._count = 1
                looked_at = self._looked(arms, outputs, blame, claimed)
        except Fault as fault:
            if fault.status != "OUT_OF_MEMORY":
                raise
            self.note = f"not seen {_BY}: there is no room for calls that are held back"
            return []
        return looked_at or []

    def _claimed(self, candidate: float, incumbent: float, arms: Sequence[Arm]) -> float:
        """The gain in microseconds that is claimed beyond what chance makes of none; it may be nothing, or less."""
        chance = math.hypot(
            2 * candidate * self._effect(candidate), *(2 * _standard_error(arm.samples) for arm in arms)
        )
        return incumbent - candidate - chance - _AUDITED_GAIN * incumbent

    def _looked(
        self, arms: Sequence[Arm], outputs: list[dict[str, Any]], blame: Blame, claimed: float
    ) -> list[Timed] | None:
        """None where calls must not pass together."""
        with ExitStack() as stack:
            gates = []
            for arm in arms:
                with blame(arm):
                    gates.append(stack.enter_context(closing(self._open(arm, outputs, self._count))))
            if self._count > 1 and not all(gate.distinct for gate in gates):
                return None
            return self._alternately(arms, gates, blame, claimed)

    def _alternately(self, arms: Sequence[Arm], gates: Sequence[Gated], blame: Blame, claimed: float) -> list[Timed]:
        for held in (True, False):
            times: list[list[float]] = [[] for _ in gates]
            looked_at = self._passages(arms, gates, blame, held, times)
            for _ in range(_ROUNDS - 1):
                if looked_at is None or _difference(times)[1] < _SURE_SHARE * abs(claimed):
                    break
                more = self._passages(arms, gates, blame, held, times)
                looked_at = None if more is None else [*looked_at, *more]
            if looked_at is not None:
                with blame(arms[0]):
                    self._judge(times, claimed, held)
                return looked_at
        self.note = f"not seen {_BY}: its calls cannot be held back, and are not over when they return"
        return []

    def _passages(
        self, arms: Sequence[Arm], gates: Sequence[Gated], blame: Blame, held: bool, times: list[list[float]]
    ) -> list[Timed] | None:
        """Add to the times of both arms; some of the first one's calls, or None where one of them does not pass."""
        looked_at = []
        chosen = self._random.sample(range(_PASSAGES), self._looks)
        for number in range(_PASSAGES):
            for which in self._random.sample(range(2), 2):
                look = which == 0 and number in chosen
                with blame(arms[which]):
                    passed = self._pass(gates[which].through if held else gates[which].at_once, look)
                    if passed is None and which == 0 and not held:
                        raise Fault("SUSPECT", "its calls take far longer than is claimed by the harness's own clock")
                if passed is None:
                    return None
                us, calls = passed
                times[which].append(us)
                looked_at += calls
        return looked_at

    def _pass(
        self, through: Callable[[list[int], bool], Passage | None], look: bool
    ) -> tuple[float, list[Timed]] | None:
        """The time of one call of a passage, and those calls whose outputs are to be compared.

        Two calls get the same values or not, by chance: what all of them have computed is then known from two, and
        which of them must agree is not.
        """
        two = [self._seed(), self._seed()]
        seeds = [self._random.choice(two) for _ in range(self._count)]
        passage = through(seeds, look)
        if passage is None:
            return None
        us = passage.us / self._count
        made = [Timed(us, passage.us, seed, out) for seed, out in zip(seeds, passage.outputs, strict=False)]
        return us, _differing(made)

    def _judge(self, times: list[list[float]], claimed: float, held: bool) -> None:
        seen, doubt = _difference(times)
        # With the host's part, whose ups and downs are large beside a short call, the doubt is the candidate's benefit.
        self.seen = seen if held else seen + doubt
        how = "" if held else ", with the host's part"
        self.note = f"{seen:.2f} (±{doubt:.2f}) of {max(claimed, 0):.2f} us gained for sure are seen {_BY}{how}"
        if seen + doubt < _SEEN_SHARE * claimed:
            text = f"a gain of {claimed:.2f} us a call is claimed, of which the harness's own clock sees {seen:.2f} us"
            raise Fault("SUSPECT", f"{text}, or {seen + doubt:.2f} us at the most")


def _difference(times: list[list[float]]) -> tuple[float, float]:
    """By how much the second arm's calls take longer, and how far from that the truth may lie."""
    doubt = _DOUBT * math.hypot(*(_standard_error(t) for t in times))
    return stats.median(times[1]) - stats.median(times[0]), doubt


def _standard_error(times: Sequence[float]) -> float:
    """Of the median, from the median absolute deviation: 1.2533 and 1.4826 for a normal distribution."""
    middle = stats.median(times)
    return 1.2533 * 1.4826 * stats.median([abs(t - middle) for t in times]) / math.sqrt(len(times))


def _differing(made: list[Timed]) -> list[Timed]:
    """The calls without those whose outputs are bit by bit another one's of the same values."""
    kept: list[Timed] = []
    for one in made:
        if not any(one.seed == other.seed and _same(one.outputs or [], other.outputs or []) for other in kept):
            kept.append(one)
    return kept


def _same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(
        a.shape == b.shape and a.dtype == b.dtype and same_bits(a, b) for a, b in zip(some, others, strict=True)
    )
