"""One of the two sides that are timed in turns, and how its calls are timed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from kopt_mcp.evaluator.process import CandidateProcess


@dataclass
class Arm:
    """A process, and the times of its calls on one workload, in microseconds."""

    process: CandidateProcess
    samples: list[float] = field(default_factory=list)
    unseen: list[float] = field(default_factory=list)
    """Where the times are claims: the harness's own time around each call, less the claim."""
    tails: list[float] = field(default_factory=list)
    """Where the times are claims: work that was still running after the call's own stream had finished."""
    warm_us: float | None = None
    checks: int = 0


@dataclass(frozen=True)
class Timed:
    """One timed call."""

    us: float
    wall_us: float
    """All that it took of the harness's time, with drawing and evicting."""
    seed: int
    outputs: list[torch.Tensor] | None = None
    """Copies in the harness's hands; None where they were not asked for."""
    distribution: str = "normal"
    """What its values were drawn from."""


class Sampler(Protocol):
    """Times calls of an arm on one workload. Every method may raise `Fault`."""

    together: bool
    """Whether several arms may be woken up at once."""

    def expect(self, outputs: list[dict[str, Any]]) -> None:
        """Told before the first call what the reference returns."""

    def wake_up(self, arm: Arm, seed: int) -> Timed:
        """A call that does not count, beside other arms'."""

    def prepare(self, seed: int, distribution: str) -> None:
        """Told before a visit what a call of `one` in it will be on: no pause before that call may tell of it."""

    def one(self, arm: Arm, seed: int, distribution: str) -> Timed:
        """One timed call with its outputs."""

    def visit(self, arm: Arm, seeds: list[int], check: bool) -> list[Timed]:
        """Timed calls, one a seed; with `check` one or more, that the candidate could not know, have their outputs."""

    def warm(self, arm: Arm, seed: int, count: int) -> float:
        """Median of repeated calls with the caches warm, for comparison only."""

    def typical(self, times: list[float]) -> float:
        """The time that stands for several."""

    def effect(self, us: float) -> float:
        """Relative half-width of what more calls do not narrow, for a call that takes `us`."""

    def require_plausible(self, arms: list[Arm], looked_into: bool) -> None:
        """Refuse times that cannot be the whole of the time; a gain only if nothing sharper is to look into it."""
