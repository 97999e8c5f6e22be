"""Times that a runner claims, as on a GPU, where only the process that launches work can time it.

They are held against what the harness knows itself: its own clock around the calls, and the bytes of calls that it
chooses after they were made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch

from kopt_mcp import stats
from kopt_mcp.evaluator.arms import Arm, Timed
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.records import RESOLUTION_US
from kopt_mcp.evaluator.watching import fingerprint
from kopt_mcp.problem import Case

_PROCESS_EFFECT_US, _SHORT_US = 0.25, 10.0
"""How far two processes running one kernel may differ for good, and the length of call above which that fades; from
the A/A trials in experiments/precision."""
_SPIN_US = (50.0, 20_000.0)
_VISIBLE_SHARE = 0.25
"""Least share of a claimed gain that must show on the harness's own clock."""
_SEEN_GAIN = 0.2
"""Share of the incumbent's time above which a gain must show."""
_TAIL_US = 150.0
"""Time that waiting for all streams may take on the host without any work behind it."""


class Claimed:
    """See `arms.Sampler`."""

    together = True

    def __init__(self, case: Case, empty_us: float, rng: Random) -> None:
        """`empty_us` is subtracted from every claim."""
        self._case, self._empty_us, self._random = case, empty_us, rng
        self._outputs: list[dict[str, Any]] = []
        self._host_us: dict[int, float] = {}
        self._spin_us = _SPIN_US[0]

    def expect(self, outputs: list[dict[str, Any]]) -> None:
        """See `Sampler`."""
        self._outputs = outputs

    def wake_up(self, arm: Arm, seed: int) -> Timed:
        """See `Sampler`. Also finds out how long the device must be kept busy while the host enqueues."""
        claim, timed = self._sample(arm, seed, alone=False)
        self._takes(arm, [claim])
        return timed

    def prepare(self, seed: int, distribution: str) -> None:
        """See `Sampler`: here the runner draws, and is told the distribution with the call."""

    def one(self, arm: Arm, seed: int, distribution: str) -> Timed:
        """See `Sampler`."""
        claim, timed = self._sample(arm, seed, keep=True, distribution=distribution)
        made = self._with_outputs(arm, timed, claim["print"])
        self._ask(arm, "forget", seed)
        return made

    def visit(self, arm: Arm, seeds: list[int], check: bool) -> list[Timed]:
        """See `Sampler`. Each output is kept and fingerprinted by the runner until it is known which is looked at."""
        switched = arm.process.take_turn()
        if arm.process.workload(self._case, self._outputs) or switched:
            self._ask(arm, "settle", seeds[0])
        claims, made = [], []
        for seed in seeds:
            claim, timed = self._sample(arm, seed, keep=True)
            claims.append(claim)
            made.append(timed)
            arm.unseen.append(timed.wall_us - timed.us)
            arm.tails.append(claim["tail_us"])
        self._takes(arm, claims)
        if check:
            chosen = self._random.randrange(len(made))
            made[chosen] = self._with_outputs(arm, made[chosen], claims[chosen]["print"])
        self._ask(arm, "forget", seeds[0])
        return made

    def warm(self, arm: Arm, seed: int, count: int) -> float:
        """See `Sampler`."""
        return max(stats.median(self._ask(arm, "warm", seed, count=count)["us"]) - self._empty_us, RESOLUTION_US)

    def typical(self, times: list[float]) -> float:
        """See `Sampler`."""
        return stats.median(times)

    def effect(self, us: float) -> float:
        """See `Sampler`: two processes that run the same kernel differ for good."""
        return _PROCESS_EFFECT_US * min(1.0, _SHORT_US / us) / us

    def require_plausible(self, arms: list[Arm], looked_into: bool) -> None:
        """See `Sampler`."""
        _require_nothing_behind(arms[0])
        if len(arms) == 2 and not looked_into:
            _require_visible_gain(arms[0], arms[1])

    def _takes(self, arm: Arm, claims: list[dict[str, Any]]) -> None:
        """The device must be kept busy while the host enqueues, for either arm: twice what that took last."""
        self._host_us[id(arm)] = max(claim["host_us"] for claim in claims)
        self._spin_us = min(2 * max(self._host_us.values()) + _SPIN_US[0], _SPIN_US[1])

    def _sample(
        self, arm: Arm, seed: int, keep: bool = False, alone: bool = True, distribution: str = "normal"
    ) -> tuple[dict[str, Any], Timed]:
        begin = time.perf_counter()
        claim = self._ask(arm, "sample", seed, alone, distribution, warm=False, keep=keep)
        wall_us = (time.perf_counter() - begin) * 1e6
        numbers = [claim.get(k) for k in ("us", "host_us", "tail_us")]
        if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers) or not 0 < claim["us"] <= wall_us:
            raise Fault("CHEATED", f"a call is claimed to take {claim.get('us')} us of {wall_us:.0f} us")
        us = max(claim["us"] - self._empty_us, RESOLUTION_US)
        return claim, Timed(us, wall_us, seed, distribution=distribution)

    def _with_outputs(self, arm: Arm, timed: Timed, print_: list[int]) -> Timed:
        outputs: list[torch.Tensor] = arm.process.outputs(self._ask(arm, "fetch", timed.seed))
        if fingerprint(outputs) != print_:
            raise Fault("CHEATED", "the output of a timed call changed after the call had returned")
        return replace(timed, outputs=outputs)

    def _ask(
        self, arm: Arm, op: str, seed: int, alone: bool = True, distribution: str = "normal", **fields: Any
    ) -> dict[str, Any]:
        arm.process.workload(self._case, self._outputs, alone)
        return arm.process.ask(
            op, alone, seed=seed, distribution=distribution, layout="contiguous", spin_us=self._spin_us, **fields
        )


def _require_nothing_behind(arm: Arm) -> None:
    """No work may go on where the call's own stream does not wait for it.

    Coarse: what an output needs is also copied right behind the call, and is wrong where it comes late.
    """
    tail, us = stats.median(arm.tails), stats.median(arm.samples)
    if tail > max(_TAIL_US, us):
        text = f"{tail:.0f} us of work went on after the call's stream had finished ({us:.1f} us were claimed)"
        raise Fault("CHEATED", text)


def _require_visible_gain(candidate: Arm, incumbent: Arm) -> None:
    """A large gain must show on the harness's own clock, or the claim was not the whole of the time."""
    gain = stats.median(incumbent.samples) - stats.median(candidate.samples)
    if gain < _SEEN_GAIN * stats.median(incumbent.samples):
        return
    # Low quantiles: a busy machine only ever adds to what is not seen.
    hidden = stats.quantile(candidate.unseen, 0.1) - stats.quantile(incumbent.unseen, 0.1)
    noise = 50.0 + 2 * sum(_low_spread(arm.unseen) + _spread(arm.unseen) for arm in (candidate, incumbent))
    if hidden > max(noise, (1 - _VISIBLE_SHARE) * gain):
        text = f"a gain of {gain:.1f} us a call is claimed, of which {hidden:.1f} us cannot be seen from outside"
        raise Fault("SUSPECT", text)


def _spread(values: Sequence[float]) -> float:
    """Median absolute deviation: large on a busy machine, where an honest kernel must not be suspected."""
    middle = stats.median(values)
    return stats.median([abs(v - middle) for v in values])


def _low_spread(values: Sequence[float]) -> float:
    """How far the lower values lie apart."""
    return stats.quantile(values, 0.3) - stats.quantile(values, 0.1)
