"""Time a candidate beside the incumbent, alternately, and check the outputs of the timed calls.

Blocks of ABBA in random order; each visit makes a few calls on values drawn from seeds that the candidate cannot know
before. A block's ratio is the ratio of medians, so that what drifts slowly (clocks, temperature, a neighbour) cancels.
A workload stops when its interval has decided, or at the largest number of blocks.

How one call is timed differs: `claimed` on a GPU, `held` on a CPU. Either way the times are held against the device's
measured ceilings (a time that physics does not allow), and the bytes of timed calls are compared that the candidate
could not know would be.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from typing import Any

from kopt_mcp import stats
from kopt_mcp.evaluator.arms import Arm, Sampler, Timed
from kopt_mcp.evaluator.audit import Audit, How
from kopt_mcp.evaluator.checks import calm_values, far_values, nearer, of_one, positions_alone, telling_values
from kopt_mcp.evaluator.compare import BadReference, Expected
from kopt_mcp.evaluator.faults import Fault, IncumbentFault
from kopt_mcp.evaluator.known import SURE
from kopt_mcp.evaluator.limits import PhysicalLimits
from kopt_mcp.evaluator.records import RESOLUTION_US, Ratio, Timing, WorkloadResult
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs, judge_all, refused
from kopt_mcp.evaluator.spent import Spent
from kopt_mcp.problem import Case, Problem, Workload

MIN_BLOCKS, MAX_BLOCKS = 5, 16
BUDGET_S = 40.0
"""Time after which no further blocks are begun; what is undecided then stays so, with its interval."""
_WARM_UP = 3
_WARM_CALLS = 7
_CALLS = {"cpu": (3, 8), "cuda": (2, 4)}
"""Fewest and most timed calls of one visit to an arm; slow calls get fewer. The first of a visit can be known by the
pause before it, so that it is in the others that a candidate must fear to be looked at."""
_VISIT_US = 60_000.0
"""Time that one visit may take, where `_CALLS` leaves room."""
_EARLY_BLOCKS, _EARLY_FACTORS = 3, {"cpu": (10, 10), "cuda": (10, 4)}
"""A gain, and a loss, that is for sure so many times beyond the bar needs no more than three blocks to be believed: a
loss is not kept, and its size matters less."""
_CHECKED_SHARES = {
    "cpu": ((16 << 20, 1.0), (math.inf, 0.3)),
    "cuda": ((1 << 20, 1.0), (16 << 20, 0.5), (math.inf, 0.1)),
}
"""Share of the candidate's visits in which one output is compared, by how many bytes the outputs have at most; besides
its first and last call, and one of its first visits."""
_PROVEN = 1.1
"""How much slower than what stands for all calls the fastest right one may be without a doubt."""
_SURE = 0.99
"""Level of the interval that must lie beyond the bar before the last block."""
_QUICK_RESAMPLES = 300
"""Of the bootstrap that decides whether to go on; the reported interval takes more."""
_KEEP_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}


class WorkloadBench:
    """The timing of one workload: the candidate, and beside it the incumbent where there is one.

    Every method may raise `Fault`, which the candidate answers for unless it is an `IncumbentFault`.
    """

    def __init__(
        self,
        problem: Problem,
        workload: Workload,
        arms: Sequence[Arm],
        sampler: Sampler,
        limits: PhysicalLimits,
        check_incumbent: bool = True,
        spent: Spent | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.workload = workload
        self.ratios: list[float] = []
        self.decided = False
        self.lost = False
        """Whether the candidate is for sure so much slower here that no gain elsewhere can have it accepted, however
        noisy this one workload is."""
        self._arms, self._sampler, self._limits = list(arms), sampler, limits
        self._problem, self._device = problem, limits.kind
        self._check_incumbent = check_incumbent
        self._spent = spent or Spent()
        self._audit = audit
        self._case = problem.case(workload)
        self._random = Random(secrets.randbits(64))
        self._outputs: list[dict[str, Any]] = []
        self._output_bytes = 1
        self._looked_at = self._random.randrange(_EARLY_BLOCKS)
        """Which of the candidate's first visits is checked whatever chance says."""
        self._visits = 0
        self._fewest, self._calls = _CALLS[limits.kind]
        self._right: list[float] = []
        """Times of the calls that count and were seen to be right."""
        self._right_on_hard: list[float] = []
        """Times of those on hard values, which do not count, between them."""
        self._calm_is_due = self._random.random() < 0.5
        self._alone: list[int | None] = []
        """Whose hard values are next: of all inputs, or of the one at a position, each in its turn."""
        self._far = True
        """Whether something can be said of values far from zero, as far as is known."""
        self._next_hard: tuple[int, str] | None = None
        """Seed and distribution of the next of these."""

    def warm_up(self) -> None:
        """Compile, fill caches, and check one output of each arm."""
        seed, distribution, expected = self._hard_values()
        self._outputs = describe_outputs(expected)
        self._output_bytes = max(1, sum(o["bytes"] for o in self._outputs))
        self._sampler.expect(self._outputs)
        with self._spent.on("first calls"):
            slowest = max(self._woken_up())
        affordable = min(_VISIT_US / slowest, _KEEP_BYTES[self._device] / self._output_bytes)
        self._calls = int(max(self._fewest, min(self._calls, affordable)))
        for number, arm in enumerate(self._arms):
            with self._blamed(arm), self._spent.on("warm_up"):
                if number == 0 or self._check_incumbent:
                    self._compare(arm, self._sampler.one(arm, seed, distribution), expected)
                arm.warm_us = self._sampler.warm(arm, new_seed(), _WARM_CALLS)

    def _woken_up(self) -> list[float]:
        """The first calls of every arm; the microseconds that one takes in all, once everything is compiled."""
        if self._sampler.together and len(self._arms) > 1:
            with ThreadPoolExecutor(len(self._arms)) as pool:
                return list(pool.map(self._wake_up, self._arms))
        return [self._wake_up(arm) for arm in self._arms]

    def _wake_up(self, arm: Arm) -> float:
        with self._blamed(arm):
            return min([self._sampler.wake_up(arm, new_seed()).wall_us for _ in range(_WARM_UP)][1:])

    def block(self) -> None:
        """One ABBA (or BAAB) block."""
        order = [0, 1, 1, 0] if len(self._arms) == 2 else [0, 0]
        if self._random.random() < 0.5:
            order = [len(self._arms) - 1 - i for i in order]
        times: list[list[float]] = [[] for _ in self._arms]
        for index in order:
            times[index] += self._visit(self._arms[index])
        if len(self._arms) == 2:
            self.ratios.append(self._sampler.typical(times[1]) / self._sampler.typical(times[0]))

    def interval(self) -> Ratio | None:
        """Incumbent time / candidate time so far; no more than the harness's own clock has seen, if it has looked."""
        if not self.ratios:
            return None
        value, low, high = stats.bootstrap_interval(self.ratios)
        low, high = stats.widen(value, low, high, self._process_effect())
        sure, most, highest = self._bounds()
        return Ratio(min(value, most), min(low / self._unproven(), sure, most), min(high, highest), len(self.ratios))

    @property
    def seen(self) -> tuple[float, float]:
        """The ratio that the harness's own clock sees, and its relative standard error: 1 where it did not look, and
        infinite where it holds the clock anyway."""
        return (math.inf, 0.0) if self._audit is None else (self._audit.seen, self._audit.error)

    def _bounds(self) -> tuple[float, float, float]:
        """The ratio that is sure by the harness's own clock, the largest that may be reported, and the largest that may
        be true."""
        return (math.inf,) * 3 if self._audit is None else (self._audit.sure, self._audit.most, self._audit.highest)

    def _unproven(self) -> float:
        """By which factor the fastest call that was seen to be right is slower than what stands for all of them.

        A candidate that does nothing in some calls, by chance, is found out by every such call that is looked at: if it
        was lucky, those that were are the slow ones.
        """
        if not self._right:
            return 1.0
        return max(1.0, min(self._right) / (_PROVEN * self._sampler.typical(self._arms[0].samples)))

    def _process_effect(self) -> float:
        """Relative half-width of what does not average out within one evaluation."""
        return self._sampler.effect(self._sampler.typical(self._arms[0].samples))

    def decide(self, floor: float, workloads: int = 1) -> None:
        """Set `decided` once more blocks would not change the verdict, and `lost`; the noise floor is that of the mean
        over so many workloads.

        That is when the whole interval lies above, below or within the bar, or when what blocks can narrow is small
        beside what they cannot.
        """
        blocks = len(self.ratios)
        if len(self._arms) == 1:
            self.decided = len(self._arms[0].samples) >= 2 * MIN_BLOCKS * self._calls
        if blocks < _EARLY_BLOCKS:
            return
        _, low, high = stats.bootstrap_interval(self.ratios, resamples=_QUICK_RESAMPLES)
        effect = self._process_effect()
        # Looking after every block finds what chance makes of noise sooner or later: an early end must be surer.
        sure = stats.bootstrap_interval(self.ratios, level=_SURE, resamples=_QUICK_RESAMPLES)
        ends = stats.widen(*sure, effect)
        ends = (ends[0] / self._unproven(), ends[1])
        gain = stats.least_gain(floor)
        faster, slower = _EARLY_FACTORS[self._device]
        least_loss = max(slower * gain, stats.least_gain(stats.most_floor(floor, workloads)))
        self.lost = ends[1] < 1 / (1 + least_loss)
        if blocks < MIN_BLOCKS:
            self.decided = ends[1] < 1 / (1 + slower * gain) or ends[0] > 1 + faster * gain
            return
        inside = low > 1 / (1 + gain) and high < 1 + gain
        self.decided = inside or ends[0] > 1 + gain or ends[1] < 1 / (1 + gain) or high / low - 1 < effect

    def finish(self, how: How = "gains") -> WorkloadResult:
        """The last checks, and the result."""
        candidate = self._arms[0]
        with self._blamed(candidate):
            self._sampler.require_plausible(self._arms, self._audit is not None)
            # A look of either kind, each behind some calls: a pause and the hard values after it would be known by one
            # another, and where the timing took three blocks all others may have come after one.
            for _ in range(2):
                self._prepare_hard_values()
                self._timed(candidate, self._seeds()[: 1 + self._random.randrange(self._calls)])
                self._look_at_hard_values(candidate)
        self._audited(how)
        # Too much may have been subtracted, of a call measured in a busier moment: nobody is to be accused of that.
        longest = stats.median(candidate.samples) * (1 + self._process_effect())
        self._limits.require_possible(self._needed(), self._output_bytes, longest)
        return WorkloadResult(
            workload=self.workload.name,
            status="PASSED",
            checks=candidate.checks,
            timing=self._timing(candidate, stats.median(self._arms[-1].samples) / self._bounds()[1]),
            incumbent=self._timing(self._arms[1]) if len(self._arms) == 2 else None,
            ratio=self.interval(),
        )

    @property
    def note(self) -> str:
        """What there is to say of how the times were made sure of."""
        told = [self._audit.note] if self._audit is not None and self._audit.note else []
        if stats.median(self._arms[0].samples) <= RESOLUTION_US:
            told.append(
                "a call takes less than can be told from an empty one's time, which is subtracted; "
                f"{RESOLUTION_US:g} us stands for that, and is no measured time"
            )
        return f"{self.workload.name}: {'; '.join(told)}" if told else ""

    def _audited(self, how: How) -> None:
        """A gain must be one by the harness's own clock too, and a call not longer than is said, if that can see it."""
        if self._audit is None or len(self._arms) != 2:
            return
        with self._spent.on("audit"):
            ratio = stats.median(self.ratios)
            looked_at = self._audit.look(self._arms, ratio, self._outputs, self._blamed, self._hard, how)
        with self._blamed(self._arms[0]):
            self._limits.require_possible(self._needed(), self._output_bytes, self._audit.longest_us)
        for timed in looked_at:
            with self._blamed(self._arms[0]), suppress(BadReference):  # hard values may have no right answer
                self._compare(self._arms[0], timed)

    def _needed(self) -> Case:
        """The case with what any kernel must move and do: at the least its outputs."""
        certain = self._problem.certain
        return replace(
            self._case,
            bytes=self._case.bytes if "bytes" in certain else float(self._output_bytes),
            flops=self._case.flops if "flops" in certain else 0.0,
        )

    def _visit(self, arm: Arm) -> list[float]:
        """A few timed calls of one arm; some are checked."""
        seeds = self._seeds()
        if arm is self._arms[0]:
            self._prepare_hard_values()
        with self._blamed(arm):
            if arm is self._arms[0] and self._right and self._hard_values_are_due():
                cut = self._random.randrange(len(seeds))
                made = self._timed(arm, seeds[:cut])
                self._look_at_hard_values(arm)
                made += self._timed(arm, seeds[cut:], self._random.random() < self._share())  # as if nothing had been
            else:
                made = self._timed(arm, seeds, arm is self._arms[0] and self._to_be_checked())
        times = [timed.us for timed in made]
        arm.samples += times
        return times

    def _seeds(self) -> list[int]:
        """Of the calls of one visit."""
        return [new_seed() for _ in range(self._calls)]

    def _timed(self, arm: Arm, seeds: list[int], check: bool = False) -> list[Timed]:
        """Calls that count; with `check` at least one of them is compared."""
        if not seeds:
            return []
        with self._spent.on("timing"):
            made = self._sampler.visit(arm, seeds, check)
        for timed in made:
            if timed.outputs is not None:
                self._compare(arm, timed)
                self._right.append(timed.us)
        return made

    def _look_at_hard_values(self, arm: Arm) -> None:
        """One call more, which does not count, between calls that do: a candidate must be right on such values there,
        not only at the first call and at the last. What is right is found out afterwards: no pause announces it."""
        chosen, self._next_hard = self._next_hard or (new_seed(), self._hard()), None
        near = nearer(chosen[1])  # of what is far from zero, where nothing can be said of that
        for seed, distribution in (chosen, *([(new_seed(), near)] if near else []), (new_seed(), "normal")):
            timed = self._sampler.one(arm, seed, distribution)
            with suppress(BadReference):
                self._compare(arm, timed)
                self._right_on_hard.append(timed.us)
                break
            self._far = self._far and not nearer(distribution)

    def _prepare_hard_values(self) -> None:
        """Ahead of each visit, whether it will have a call on them or not."""
        if self._next_hard is None:
            self._next_hard = (new_seed(), self._hard())
            self._sampler.prepare(*self._next_hard)

    def _hard_values_are_due(self) -> bool:
        """By chance, or until a call on them was seen to be right that was as fast as those that count: who takes a
        short cut in some of these only is found out by the next look."""
        fastest = min(self._right_on_hard, default=math.inf)
        slow = fastest > _PROVEN * self._sampler.typical(self._arms[0].samples)
        return slow or self._random.random() < self._share() / 2

    def _share(self) -> float:
        """Of the candidate's visits, those in which it is looked at."""
        return next(share for most, share in _CHECKED_SHARES[self._device] if self._output_bytes <= most)

    def _to_be_checked(self) -> bool:
        """Whether one call of the candidate's next visit is compared, which it could not know."""
        self._visits += 1
        due = self._visits == self._looked_at + 1 or self._unproven() > 1.0
        return due or self._random.random() < self._share()

    def _hard_values(self) -> tuple[int, str, list[Expected]]:
        """A seed with the expected outputs, on hard values where the problem allows them: seed, distribution, outputs.

        A kernel that takes a short cut in timed calls, because they are all drawn from one distribution, is wrong here.
        """
        seed, distribution = new_seed(), self._hard()
        for named in filter(None, (distribution, nearer(distribution))):
            with suppress(BadReference):
                return seed, named, self._expected(seed, named)
            self._far = self._far and not nearer(named)
        return seed, "normal", self._expected(seed, "normal")

    def _hard(self) -> str:
        """A distribution on which a short cut shows: in turns one that tells, more often the one that is not recognised
        by a few values, and the calm ones, so that the first look and the last are at both kinds. Of those that tell
        some are of one input only, and some far from zero."""
        self._calm_is_due = not self._calm_is_due
        if self._calm_is_due and (calm := calm_values(self._problem, self._case)):
            return self._random.choice(calm)
        if not self._alone:
            self._alone = [None, *positions_alone(self._problem, self._case)]
            self._random.shuffle(self._alone)
        position = self._alone.pop()
        far = far_values(self._problem, self._case, self._random, position) if self._far else []
        if far and self._random.random() < 0.5:
            return self._random.choice([*far, *2 * far[1:]])
        if position is not None:
            return of_one(self._problem, self._case, position, self._random)
        named = telling_values(self._problem, self._case) or list(self._problem.distributions) or ["normal"]
        return self._random.choice([*named, *2 * named[:1]])

    def _expected(self, seed: int, distribution: str) -> list[Expected]:
        with self._spent.on("expected"):
            return expected_outputs(self._problem, self._case, seed, self._device, distribution)

    def _compare(self, arm: Arm, timed: Timed, expected: list[Expected] | None = None) -> None:
        """The output of one timed call must be right; what is `expected` may be known already."""
        assert timed.outputs is not None
        if expected is None:
            expected = self._expected(timed.seed, timed.distribution)
        with self._spent.on("judge"):
            verdict = judge_all(timed.outputs, expected)
        arm.checks += 1
        if verdict.status != "PASSED":
            raise Fault(verdict.status, f"the output of a timed call is wrong: {verdict.detail}")
        if refused(self._problem, timed.outputs, self._case, timed.seed, self._device, timed.distribution):
            raise Fault("INCORRECT_NUMERICAL", "the task's own check refuses the output of a timed call")

    @contextmanager
    def _blamed(self, arm: Arm) -> Iterator[None]:
        """Say of a fault which workload it was in, and whose it is."""
        try:
            yield
        except Fault as fault:
            kind = Fault if arm is self._arms[0] else IncumbentFault
            raise kind(fault.status, f"{self.workload.name}: {fault.detail}") from None

    def _timing(self, arm: Arm, least_us: float = 0.0) -> Timing:
        """What the samples say, and no less than the harness's own clock allows: where that is more than was claimed,
        nothing is known of calls with warm caches."""
        claimed_us = stats.median(arm.samples)
        return Timing(
            latency_us=max(claimed_us, least_us),
            p10_us=max(stats.quantile(arm.samples, 0.1), least_us),
            p90_us=max(stats.quantile(arm.samples, 0.9), least_us),
            samples=len(arm.samples),
            method="wall" if self._device == "cpu" else "cuda_events",
            cache="l2_cold",
            warm_us=arm.warm_us if claimed_us >= least_us else None,
        )


def measure(
    benches: Sequence[WorkloadBench], floor: float, during: Callable[[int, int], None], thorough: bool = False
) -> list[WorkloadResult]:
    """All workloads by turns, block by block, until each is decided, or one is lost, or it takes too long: results.

    Where the candidate may be accepted the harness's own clock looks at all workloads: a loss that is not claimed would
    have the gain in another one accepted. Where it cannot be, because it has lost one, at the gains for a moment.

    Args:
        floor: the noise floor of the mean over the workloads.
        during: called after each round of blocks, with how many there were and how many workloads need another.
        thorough: nothing is left out; every time may be asked for.

    Raises:
        Fault: see `WorkloadBench`.
    """
    begin = time.monotonic()
    lost = False
    undecided = list(benches)
    for blocks in range(1, MAX_BLOCKS + 1):
        for work in undecided:
            work.block()
            work.decide(floor, len(benches))
        undecided = [b for b in undecided if not b.decided]
        during(blocks, len(undecided))
        lost = not thorough and any(b.lost for b in benches)
        if not undecided or (blocks >= MIN_BLOCKS and (lost or time.monotonic() - begin > BUDGET_S)):
            break
    claimed = combine([b.interval() for b in benches], [(math.inf, 0.0)] * len(benches))
    promising = claimed is not None and claimed.low > 1 + stats.least_gain(floor)
    how: How = "brief" if lost else "all" if thorough or promising else "gains"
    return [b.finish(how) for b in benches]


def combine(ratios: Sequence[Ratio | None], seen: Sequence[tuple[float, float]]) -> Ratio | None:
    """Geometric mean of the workloads' ratios; the half-widths add up in quadrature on the logarithmic scale.

    What is claimed and not `seen` by the harness's own clock may be missing in all of them, and is no noise that evens
    out: the lower end is no more than the same made of what is seen, with the errors of that, and 1 where it could not
    look at one of them (an infinite error).
    """
    timed = [(ratio, *one) for ratio, one in zip(ratios, seen, strict=True) if ratio is not None]
    if not timed:
        return None
    value = stats.geometric_mean([r.value for r, *_ in timed])
    down = math.sqrt(sum(math.log(r.value / max(r.low, 1e-9)) ** 2 for r, *_ in timed)) / len(timed)
    up = math.sqrt(sum(math.log(r.high / r.value) ** 2 for r, *_ in timed)) / len(timed)
    by_clock = stats.geometric_mean([min(ratio.value, by) for ratio, by, _ in timed])
    error = math.hypot(*(error for *_, error in timed)) / len(timed)
    by_clock = by_clock * math.exp(-SURE * error) if math.isfinite(error) else 1.0
    return Ratio(value, min(value * math.exp(-down), by_clock), value * math.exp(up), min(r.blocks for r, *_ in timed))


def new_seed() -> int:
    """A secret one."""
    return 1 + secrets.randbits(40)
