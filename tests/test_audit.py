"""A claimed gain seen from outside: gates that tell what the test says a call takes, whatever was claimed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

import pytest
import torch

from kopt_mcp.evaluator.arms import Arm
from kopt_mcp.evaluator.audit import Audit, Room
from kopt_mcp.evaluator.faults import Fault, IncumbentFault
from kopt_mcp.evaluator.gate import Passage

CACHE, MEMORY = 60 << 20, 1 << 30
OUTPUTS = [{"shape": [64], "dtype": "float32", "bytes": 256}]
OVERHEAD_US = 60.0


class Open:
    """A gate: what a call takes, and how far that goes up and down."""

    distinct = True

    def __init__(self, us: float, noise_us: float = 0.0, fault: str = "", closed_to: int = 99) -> None:
        self.us, self.noise_us, self.fault, self.closed_to = us, noise_us, fault, closed_to
        self.passed: list[list[int]] = []
        self.works: Callable[[int], torch.Tensor] = torch.tensor
        self.open, self.unheld, self.never = True, 0, False
        self._random = Random(7)

    def through(self, seeds: list[int], look: bool) -> Passage | None:
        if self.fault:
            raise Fault("OUT_OF_MEMORY" if self.fault == "full" else "RUNTIME_ERROR", self.fault)
        self.passed.append(seeds)
        if len(self.passed) > self.closed_to:
            return None
        us = OVERHEAD_US + len(seeds) * self.us + self._random.gauss(0.0, self.noise_us)
        return Passage(us, [[self.works(seed)] for seed in seeds] if look else [])

    def at_once(self, seeds: list[int], look: bool) -> Passage | None:
        if self.never:
            return None
        self.unheld += 1
        us = 5 * OVERHEAD_US + len(seeds) * self.us + self._random.gauss(0.0, self.noise_us)
        return Passage(us, [[self.works(seed)] for seed in seeds] if look else [])

    def close(self) -> None:
        self.open = False


class Blamed:
    """Whose fault it is."""

    def __init__(self, arms: list[Arm]) -> None:
        self.arms = arms

    @contextmanager
    def __call__(self, arm: Arm) -> Iterator[None]:
        try:
            yield
        except Fault as fault:
            raise (Fault if arm is self.arms[0] else IncumbentFault)(fault.status, fault.detail) from None


def effect(us: float) -> float:
    """Two processes of one kernel differ by a twentieth of a microsecond for good."""
    return 0.05 / us


def looked(candidate: Open, incumbent: Open, claims: tuple[float, float]) -> Any:
    arms = [Arm(None, samples=[us] * 9) for us in claims]  # type: ignore[arg-type]
    gates = {id(arm): gate for arm, gate in zip(arms, (candidate, incumbent), strict=True)}
    seeds = count(1)
    room = Room(1 << 10, CACHE, MEMORY)
    audit = Audit(lambda arm, outputs, calls: gates[id(arm)], room, effect, lambda: next(seeds), Random(3))
    return audit, audit.look(arms, OUTPUTS, Blamed(arms))


@pytest.mark.parametrize("noise_us", [0.0, 5.0, 40.0])
def test_a_gain_that_is_one_is_seen_on_a_quiet_and_on_a_noisy_machine(noise_us: float) -> None:
    candidate, incumbent = Open(8.0, noise_us), Open(10.0, noise_us)
    audit, timed = looked(candidate, incumbent, (8.0, 10.0))
    assert "of 1.80 us gained for sure are seen" in audit.note
    assert all(len(set(seeds)) <= 2 for seeds in candidate.passed)
    passed = {seed for seeds in candidate.passed for seed in seeds}
    assert all(t.seed in passed and t.outputs == [torch.tensor(t.seed)] for t in timed)
    assert len({t.seed for t in timed}) == len(timed) > 3, "calls that got the same values need not be compared twice"
    assert (candidate.open, incumbent.open) == (False, False), "gates are closed again"


def test_calls_that_lose_part_of_their_gain_when_they_follow_each_other_are_not_suspected() -> None:
    assert looked(Open(8.6), Open(10.0), (8.0, 10.0))[1]


@pytest.mark.parametrize("share", [0.95, 0.8, 0.5])
def test_a_clock_that_tells_a_share_of_the_time_is_suspect(share: float) -> None:
    with pytest.raises(Fault, match=r"the harness's own clock sees 0\.\d\d us") as caught:
        looked(Open(30.0, 2.0), Open(30.0, 2.0), (30.0 * share, 30.0))
    assert caught.value.status == "SUSPECT"
    assert not isinstance(caught.value, IncumbentFault)


def test_where_one_round_leaves_doubt_there_is_another() -> None:
    quiet, noisy = Open(8.0), Open(8.0, 40.0)
    looked(quiet, Open(10.0), (8.0, 10.0))
    looked(noisy, Open(10.0, 40.0), (8.0, 10.0))
    assert len(noisy.passed) == 2 * len(quiet.passed)


def test_a_gain_that_chance_makes_of_none_is_looked_for_and_not_held_against_anybody() -> None:
    arms = [Arm(None, samples=[8.0, 9.9, 11.8] * 3), Arm(None, samples=[8.1, 10.2, 12.2] * 3)]  # type: ignore[arg-type]
    audit = Audit(lambda arm, outputs, calls: Open(1.0), Room(1, CACHE, MEMORY), effect, lambda: 1, Random(3))
    audit.look(arms, OUTPUTS, Blamed(arms))
    assert audit.seen == 0.0
    assert "of 0.00 us gained for sure" in audit.note


def test_what_is_seen_with_the_hosts_part_is_seen_with_the_benefit_of_doubt() -> None:
    held, _ = looked(Open(8.0), Open(10.0), (8.0, 10.0))
    assert held.seen == pytest.approx(2.0)
    unheld, _ = looked(Open(8.0, 20.0, closed_to=0), Open(10.0, 20.0), (8.0, 10.0))
    assert unheld.seen > 2.0


def test_what_a_noisy_machine_hides_is_no_accusation() -> None:
    audit, _ = looked(Open(30.0, 400.0), Open(30.0, 400.0), (27.0, 30.0))
    assert "of 2.60 us gained" in audit.note


@pytest.mark.parametrize("claims", [(10.0, 10.0), (12.0, 10.0), (9.9, 10.0)])
def test_where_no_gain_is_claimed_nobody_looks(claims: tuple[float, float]) -> None:
    candidate = Open(10.0)
    audit, timed = looked(candidate, Open(10.0), claims)
    assert (timed, candidate.passed, audit.note) == ([], [], "")


@pytest.mark.parametrize("which", [0, 1])
def test_calls_that_cannot_be_held_back_are_timed_from_when_they_are_asked_for(which: int) -> None:
    gates = [Open(5.0), Open(10.0)]
    gates[which].closed_to = 3
    audit, timed = looked(*gates, (5.0, 10.0))
    assert timed
    assert audit.note.endswith("with the host's part")
    assert gates[0].unheld == gates[1].unheld > 0, "both arms alike"
    assert (gates[0].open, gates[1].open) == (False, False)


def test_a_candidate_that_will_not_be_held_back_must_be_faster_all_the_same() -> None:
    with pytest.raises(Fault, match="is claimed, of which"):
        looked(Open(10.0, 1.0, closed_to=0), Open(10.0, 1.0), (5.0, 10.0))


def test_calls_that_are_never_over_are_suspect_if_the_candidates_and_told_if_the_others() -> None:
    endless, other = Open(10.0, closed_to=0), Open(10.0)
    endless.never = True
    with pytest.raises(Fault, match="take far longer than is claimed") as caught:
        looked(endless, other, (5.0, 10.0))
    assert (caught.value.status, isinstance(caught.value, IncumbentFault)) == ("SUSPECT", False)
    audit, timed = looked(other, endless, (5.0, 10.0))
    assert (timed, "cannot be held back" in audit.note) == ([], True)


def test_an_incumbent_that_fails_there_is_not_the_candidates_fault() -> None:
    with pytest.raises(IncumbentFault, match="gone"):
        looked(Open(5.0), Open(10.0, fault="gone"), (5.0, 10.0))
    with pytest.raises(Fault, match="gone") as caught:
        looked(Open(5.0, fault="gone"), Open(10.0), (5.0, 10.0))
    assert not isinstance(caught.value, IncumbentFault)


@pytest.mark.parametrize(
    ("us", "input_bytes", "output_bytes", "calls"),
    [
        (5.0, 1 << 18, 1 << 18, 32),
        (50.0, 1 << 20, 1 << 20, 8),
        (5.0, 64 << 20, 64 << 20, 8),
        (20.0, 16 << 20, 16 << 20, 16),
        (500.0, 64 << 20, 64 << 20, 1),
        (5.0, 2 << 30, 4, 1),
    ],
)
def test_as_many_calls_pass_as_the_cache_holds_the_outputs_of_and_as_have_room(
    us: float, input_bytes: int, output_bytes: int, calls: int
) -> None:
    assert Room(input_bytes, CACHE, MEMORY).calls(us, output_bytes) == calls


def test_calls_that_share_their_outputs_pass_one_by_one() -> None:
    candidate = Open(5.0)
    candidate.distinct = False
    _, timed = looked(candidate, Open(10.0), (5.0, 10.0))
    assert {len(seeds) for seeds in candidate.passed} == {1}
    assert len(timed) == 3


def test_where_there_is_no_room_nobody_is_blamed() -> None:
    audit, timed = looked(Open(5.0, fault="full"), Open(10.0), (5.0, 10.0))
    assert (timed, "no room" in audit.note) == ([], True)


def test_a_call_that_differs_from_another_of_the_same_values_is_compared_too() -> None:
    candidate, made = Open(5.0), count()
    candidate.works = lambda seed: torch.tensor(seed if next(made) else 0)
    _, timed = looked(candidate, Open(10.0), (5.0, 10.0))
    assert sum(t.outputs == [torch.tensor(0)] for t in timed) == 1
