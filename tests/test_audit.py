"""A claimed gain seen from outside: gates that tell what the test says a call takes, whatever was claimed."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from random import Random
from typing import Any

import pytest
import torch

from kopt_mcp import stats
from kopt_mcp.evaluator.arms import Arm
from kopt_mcp.evaluator.audit import Audit, How, Pair
from kopt_mcp.evaluator.faults import Fault, IncumbentFault
from kopt_mcp.evaluator.gate import Passed, Values
from kopt_mcp.evaluator.known import Known, Middle, apart, known, quiet
from kopt_mcp.evaluator.passage import NotShared, Went

OUTPUTS = [{"shape": [64], "dtype": "float32", "bytes": 256}]
OVERHEAD_US, KNOWN_US = 85.0, 5.0


class Open:
    """A gate: what a call takes, and how far that goes up and down."""

    def __init__(self, us: float, noise_us: float = 0.0, fault: str = "") -> None:
        self.us, self.noise_us, self.fault = us, noise_us, fault
        self.again_at = 0
        self.passed: list[int] = []
        self.hard: list[int] = []
        self.works: Callable[[int], torch.Tensor] = torch.tensor
        self.takes: Callable[[int], float] = lambda seed: self.us
        self.quiet: Callable[[int], bool] = lambda seed: True
        self.open = True
        self.raises: Exception | None = None
        self.apart_us = self.before_us = 0.0
        self.known_us = KNOWN_US
        self.own = 0
        self._random = Random(7)

    def through(self, values: Values, look: bool) -> Passed | None:
        if self.fault:
            raise Fault("RUNTIME_ERROR", self.fault)
        if self.raises:
            raise self.raises
        seed = values.seed
        self.passed.append(seed)
        self.hard += [seed] if values.distribution == "mixed" else []
        if len(self.passed) == self.again_at:
            return None
        return Passed(self._went(self.takes(seed), self.quiet(seed)), [self.works(seed)] if look else [])

    def known(self, kind: int) -> Went | None:
        self.own += 1
        return None if self.own == self.again_at else self._went(self.known_us + 10 * (kind - 1), True)

    def before(self, kind: int) -> Went:
        """A call of our own before there was a candidate."""
        return self._went(KNOWN_US + self.before_us - self.apart_us + 10 * (kind - 1), True)

    def _went(self, us: float, quiet: bool) -> Went:
        us += OVERHEAD_US + self.apart_us + self._random.gauss(0.0, self.noise_us)
        return Went(us, 70.0 if quiet else 100.0)

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


def before(lines: Any) -> Known:
    return known([line.before for line in lines], KNOWN_US, Random(4))


def pairs_of(lines: Any) -> Callable[[int], AbstractContextManager[Pair | None]]:
    """Other processes, in which all takes as long."""
    return lambda number: nullcontext(Pair(lines, before(lines)))


def looked(
    candidate: Open, incumbent: Open, claims: tuple[float, float], ratio: float = 1.0, how: How = "gains"
) -> Any:
    arms = [Arm(None, samples=[us] * 9) for us in claims]  # type: ignore[arg-type]
    seeds = count(1)
    lines: Any = [candidate, incumbent]
    audit = Audit(pairs_of(lines), lambda line, *_: line, effect, lambda: next(seeds), Random(3))  # type: ignore[return-value, arg-type]
    return audit, audit.look(arms, ratio, OUTPUTS, Blamed(arms), lambda: "mixed", how)


@pytest.mark.parametrize("noise_us", [0.0, 1.0, 5.0])
def test_a_gain_that_is_one_is_seen_on_a_quiet_and_on_a_noisy_machine(noise_us: float) -> None:
    candidate, incumbent = Open(8.0, noise_us), Open(10.0, noise_us)
    audit, timed = looked(candidate, incumbent, (8.0, 10.0))
    assert "of 1.80 us gained for sure are seen" in audit.note
    assert audit.sure <= 10 / 8 + 1e-9
    assert audit.most > 1e9, "no more is claimed than may be so"
    passed = candidate.passed
    assert len(set(passed)) == len(passed), "no two calls get the same values"
    assert len([t for t in timed if t.distribution == "normal"]) == (9 if noise_us > 1.0 else 3), "three in each pair"
    assert all(t.seed in passed and t.outputs == [torch.tensor(t.seed)] for t in timed)
    assert (candidate.open, incumbent.open) == (False, False), "gates are closed again"


def test_some_of_the_candidates_calls_are_on_hard_values_and_compared_and_do_not_count() -> None:
    candidate, incumbent = Open(8.0, 5.0), Open(10.0, 5.0)
    timed = looked(candidate, incumbent, (8.0, 10.0))[1]
    assert 0 < len(candidate.hard) < len(candidate.passed) / 3
    assert [t.seed for t in timed if t.distribution == "mixed"] == candidate.hard
    assert incumbent.hard == []
    slow = Open(8.0)
    slow.takes = lambda seed: 500.0 if slow.hard[-1:] == [seed] else 8.0
    assert looked(slow, Open(10.0), (8.0, 10.0))[0].sure == pytest.approx(10 / 8.5), "what they take"


UNTOLD_US = 0.5
"""What is not sure of any gain in one pair of processes."""


def test_a_gain_of_which_part_is_seen_is_not_suspected_and_no_more_than_that_is_sure() -> None:
    audit, timed = looked(Open(8.6), Open(10.0), (8.0, 10.0))
    assert timed
    assert audit.sure == pytest.approx(10 / (8.6 + UNTOLD_US))
    assert audit.most > 1e9, "it may be off for good by a microsecond"
    audit, _ = looked(Open(33.0), Open(60.0), (29.0, 60.0))
    assert audit.most == pytest.approx(60 / 33), "where more is claimed than that, its own word stands"


@pytest.mark.parametrize("share", [0.9, 0.8, 0.5])
def test_a_clock_that_tells_a_share_of_the_time_is_suspect(share: float) -> None:
    with pytest.raises(Fault, match=r"the harness's own clock sees -?0\.\d\d us") as caught:
        looked(Open(30.0, 0.3), Open(30.0, 0.3), (30.0 * share, 30.0))
    assert caught.value.status == "SUSPECT"
    assert not isinstance(caught.value, IncumbentFault)


def test_a_clock_that_tells_a_little_less_gains_nothing_by_it() -> None:
    audit, _ = looked(Open(30.0, 0.5), Open(30.0, 0.5), (28.8, 30.0))
    assert audit.sure < 1.01


def test_a_ratio_that_claims_more_than_the_times_do_is_looked_into() -> None:
    with pytest.raises(Fault, match=r"a gain of 7\.20 us a call is claimed"):
        looked(Open(30.0), Open(30.0), (30.0, 30.0), ratio=30 / 22.4)


@pytest.mark.parametrize("apart_us", [1.0, -1.0])
def test_what_a_process_takes_for_any_call_is_none_of_its_gain(apart_us: float) -> None:
    candidate = Open(6.0)
    candidate.apart_us = candidate.before_us = apart_us
    assert looked(candidate, Open(10.0), (6.0, 10.0))[0].note.startswith("4.00 (±0.75)")


def test_what_any_call_takes_less_since_the_candidate_came_is_none_of_its_gain() -> None:
    candidate = Open(30.0)
    candidate.apart_us = -2.5
    assert looked(candidate, Open(30.0), (29.0, 30.0))[0].sure == 1.0
    incumbent = Open(30.0)
    incumbent.apart_us = 2.5
    assert looked(Open(30.0), incumbent, (29.0, 30.0))[0].sure == 1.0, "nor what the incumbent's take more"


def test_what_the_incumbents_calls_take_beyond_their_own_times_is_no_gain() -> None:
    disturbed = Open(30.0)
    disturbed.takes = lambda seed: 50.0
    with pytest.raises(Fault, match=r"sees 6\.50 us, or 8\.25 us at the most"):
        looked(Open(30.0), disturbed, (17.0, 30.0))


def test_our_own_calls_slowed_in_its_process_are_no_gain_of_the_candidates() -> None:
    slow = Open(30.0)
    slow.known_us = KNOWN_US + 20.0
    audit, _ = looked(slow, Open(30.0), (29.0, 30.0))
    assert audit.sure == 1.0, "nothing of it is sure"
    with pytest.raises(Fault, match=r"sees 0\.00 us"):
        looked(slow, Open(30.0), (20.0, 30.0))


def test_the_most_that_calls_take_is_what_they_take_beyond_our_own() -> None:
    audit, _ = looked(Open(8.0), Open(10.0), (8.0, 10.0))
    assert audit.longest_us == pytest.approx(8.0 + 1.0)
    sooner = Open(-20.0)
    assert looked(sooner, Open(10.0), (8.0, 10.0))[0].longest_us < 0
    assert looked(Open(10.0), Open(10.0), (10.0, 10.0))[0].longest_us == math.inf, "nothing was looked into"


def test_calls_beside_which_the_device_did_something_else_do_not_count() -> None:
    candidate = Open(10.0)
    candidate.quiet = lambda seed: seed % 2 == 0
    candidate.takes = lambda seed: 10.0 if seed % 2 == 0 else 1.0
    audit, _ = looked(candidate, Open(20.0), (10.0, 20.0))
    assert audit.sure == pytest.approx(20 / (10 + UNTOLD_US))


def test_a_call_that_leaves_its_work_out_is_among_those_that_are_compared() -> None:
    candidate = Open(10.0)
    candidate.takes = lambda seed: 2.0 if seed % 4 == 0 else 10.0
    assert all(t.seed % 4 == 0 for t in looked(candidate, Open(20.0), (10.0, 20.0))[1][:2])


def test_work_that_is_restless_makes_its_own_doubt_no_excuse() -> None:
    candidate, chance = Open(30.0, 0.3), Random(5)
    candidate.takes = lambda seed: 30.0 + (chance.random() < 0.5) * 400 * chance.random()
    with pytest.raises(Fault, match="is claimed, of which"):
        looked(candidate, Open(30.0, 0.3), (10.0, 30.0))


def test_as_much_doubt_as_a_restless_candidate_would_need_is_not_given() -> None:
    candidate = Open(30.0, 30.0)
    arms = [Arm(None, samples=[us] * 9) for us in (24.0, 30.0)]  # type: ignore[arg-type]
    seeds = count(1)
    lines: Any = [candidate, Open(30.0, 0.3)]
    audit = Audit(pairs_of(lines), lambda line, *_: line, effect, lambda: next(seeds), Random(3))  # type: ignore[return-value, arg-type]
    with pytest.raises(Fault, match="is claimed, of which"):
        audit.look(arms, 1.0, OUTPUTS, Blamed(arms), lambda: "mixed", "gains")


def test_where_one_round_leaves_doubt_there_is_another_and_more_where_a_gain_is_likely() -> None:
    quiet, noisy, unlikely = Open(8.0), Open(2.0, 40.0), Open(30.0, 10.0)
    looked(quiet, Open(10.0), (8.0, 10.0))
    looked(noisy, Open(10.0, 40.0), (2.0, 10.0))
    with pytest.raises(Fault, match="of which the harness's own clock sees"):
        looked(unlikely, Open(10.0, 10.0), (8.0, 10.0))
    assert [len(one.passed) for one in (quiet, unlikely, noisy)] == [8, 8 * 8, 24 * 8]


def scattered(middle: float) -> list[float]:
    """Claims that go up and down so much that chance could make any gain of them."""
    return [0.01 * middle] * 3 + [middle] * 3 + [2.4 * middle] * 3


def test_where_no_gain_can_be_accepted_one_round_sees_a_lie() -> None:
    noisy, lying = Open(2.0, 40.0), Open(10.0)
    audit, compared = looked(noisy, Open(10.0, 40.0), (2.0, 10.0), how="brief")
    assert audit.sure < 2.0, "little is"
    assert len(compared) >= 3
    with pytest.raises(Fault, match="of which the harness's own clock sees"):
        looked(lying, Open(10.0), (5.0, 10.0), how="brief")
    assert [len(one.passed) for one in (noisy, lying)] == [8, 8]


@pytest.mark.parametrize("how", ["brief", "gains", "all"])
def test_claims_that_go_up_and_down_are_looked_at_too_and_not_reported(how: How) -> None:
    candidate, incumbent = Open(100.0, 0.5), Open(100.0, 0.5)
    arms = [Arm(None, samples=s) for s in (scattered(60.0), [100.0] * 9)]  # type: ignore[arg-type]
    seeds = count(1)
    audit = Audit(pairs_of([candidate, incumbent]), lambda line, *_: line, effect, lambda: next(seeds), Random(3))  # type: ignore[return-value, arg-type]
    audit.look(arms, 1.0, OUTPUTS, Blamed(arms), lambda: "mixed", how)
    assert candidate.passed, "whatever chance could make of it"
    assert audit.most == pytest.approx(1.0, abs=0.01)
    assert audit.most <= audit.highest < 1.05
    assert (audit.seen, audit.error) == (pytest.approx(1.0, abs=0.01), 0.0)


def test_calls_that_take_longer_than_is_claimed_are_suspected_where_all_are_looked_at() -> None:
    slow, honest = Open(150.0), Open(100.0)
    with pytest.raises(Fault, match=r"its calls take 50\.00 us longer by the harness's own clock than is claimed"):
        looked(slow, Open(100.0), (100.0, 100.0), how="all")
    assert looked(slow, Open(100.0), (100.0, 100.0), how="gains")[0].note == "", "nobody has looked"
    audit = looked(honest, Open(100.0), (100.0, 100.0), how="all")[0]
    assert (len(honest.passed), audit.note, audit.most, audit.seen) == (8, "", math.inf, 1.0), "as is claimed"
    audit = looked(Open(103.0), Open(100.0), (103.0, 100.0), 100 / 103, "all")[0]
    assert (audit.most, audit.seen) == (math.inf, pytest.approx(100 / (103 - UNTOLD_US))), "a loss that is claimed"


def test_a_loss_that_is_not_claimed_counts_as_far_as_it_is_seen() -> None:
    audit = looked(Open(101.9), Open(100.0), (100.0, 100.0), how="all")[0]
    assert audit.seen == pytest.approx(100 / (101.9 - UNTOLD_US))
    assert audit.most == pytest.approx(100 / 101.9), "the clock's own word"
    assert audit.note == "its calls take 1.90 us longer by the harness's own clock than is claimed"


class Several:
    """Pairs of processes, in which calls take longer by what our own calls there do not tell."""

    def __init__(self, lines: list[Open], untold_us: list[float]) -> None:
        self.lines, self.untold_us, self.asked, self.open = lines, untold_us, 0, 0
        self.first: Pair | None = None
        self.second: Pair | Exception | None = None
        self.compared: list[Any] = []

    @contextmanager
    def __call__(self, number: int) -> Iterator[Pair | None]:
        self.asked += 1
        if number == len(self.untold_us):
            yield None
            return
        us = 98.0 + self.untold_us[number]
        self.lines[0].takes = lambda seed: us
        self.open += 1
        if number == 1 and isinstance(self.second, Exception):
            self.lines[0].raises = self.second
        given = (self.first, self.second, None)[number]
        yield given if isinstance(given, Pair) else Pair(self.lines, before(self.lines))  # type: ignore[arg-type]
        self.open -= 1

    def look(self) -> Audit:
        arms = [Arm(None, samples=[us] * 9) for us in (98.0, 100.0)]  # type: ignore[arg-type]
        seeds = count(1)
        audit = Audit(self, lambda line, *_: line, effect, lambda: next(seeds), Random(3))  # type: ignore[return-value, arg-type]
        self.compared = audit.look(arms, 1.0, OUTPUTS, Blamed(arms), lambda: "mixed", "gains")
        return audit


def test_a_gain_in_doubt_is_looked_for_in_other_processes_and_their_average_counts() -> None:
    lines = [Open(98.0), Open(100.0)]
    two = Several(lines, [0.95, -0.5])
    audit = two.look()
    assert two.asked == 2
    assert audit.sure == pytest.approx(100 / (98.225 + UNTOLD_US / math.sqrt(2)))
    assert audit.note.endswith("by the harness's own clock, in 2 pairs of processes")
    all_of_them = Several(lines, [0.95] * 3)
    assert (all_of_them.look().sure, all_of_them.asked) == (pytest.approx(100 / (98.95 + UNTOLD_US / math.sqrt(3))), 3)
    no_room = Several(lines, [0.95])
    assert two.open == 0, "they end when they were looked at"
    assert (no_room.look().sure, no_room.asked) == (pytest.approx(100 / (98.95 + UNTOLD_US)), 2)


@pytest.mark.parametrize("second", [NotShared(), Fault("OUT_OF_MEMORY", "no room"), Fault("RUNTIME_ERROR", "gone")])
def test_what_was_seen_stays_where_other_processes_cannot_be_looked_at(second: Any) -> None:
    lines = [Open(98.0), Open(100.0)]
    several = Several(lines, [0.95] * 3)
    several.second = second
    audit = several.look()
    assert (audit.sure, several.asked) == (pytest.approx(100 / (98.95 + UNTOLD_US)), 2)
    assert len([t for t in several.compared if t.distribution == "normal"]) == 3, "and its calls are compared"


def test_where_nothing_is_known_of_those_that_were_timed_others_may_tell() -> None:
    lines = [Open(98.0), Open(100.0)]
    several = Several(lines, [0.0, 0.0, 0.0])
    several.first = Pair((), None)
    audit = several.look()
    assert audit.sure == pytest.approx(100 / (98 + UNTOLD_US))
    assert (audit.seen, audit.error) == (pytest.approx(100 / 98), pytest.approx(0.0025 * 100 / 98))


def test_a_candidate_that_is_wrong_in_other_processes_is_wrong() -> None:
    several = Several([Open(98.0), Open(100.0)], [0.95] * 3)
    several.second = Fault("CHEATED", "it went on")
    with pytest.raises(Fault, match="it went on"):
        several.look()


def test_how_far_processes_are_apart_is_what_leaves_less_of_a_gain_where_the_candidate_may_have_changed_it() -> None:
    def processes(candidate: float, incumbent: float, error: float = 0.1) -> list[Middle]:
        return [Middle(candidate, error), Middle(incumbent, error)]

    before = processes(300.0, 301.0)
    assert apart(before, processes(300.1, 301.0)).us == 1.0, "our own calls were slowed"
    assert apart(before, processes(340.0, 301.0)).us == 1.0
    assert apart(before, processes(299.9, 301.0)).us == pytest.approx(1.05), "by chance"
    assert apart(before, processes(295.0, 301.0)).us == 6.0, "all of its calls are quicker"
    restless = [Middle(299.0, 5.0), Middle(301.0, 0.1)]
    assert apart(before, restless).us == 2.0, "its own ups and downs are no reason to take it for chance"
    assert apart(processes(300.0, 301.0, 9.0), processes(295.0, 301.0)).us == 6.0, "nor are those of before"


def test_a_gain_of_two_per_cent_is_sure_whatever_a_process_adds_to_it() -> None:
    """As noisy as passages are on an H200, in processes that differ as much as they do there."""
    found = []
    for seed in range(20):
        lines = [Open(98.0, 0.6), Open(100.0, 0.6)]
        chance = lines[0]._random = Random(seed)
        lines[0].apart_us = lines[0].before_us = chance.gauss(0.0, 1.5)
        found.append(Several(lines, [chance.gauss(0.0, 0.35) for _ in range(3)]).look().sure)
    assert sum(sure > 1.01 for sure in found) >= 19


def test_where_all_that_is_claimed_is_seen_for_sure_nobody_looks_again() -> None:
    candidate = Open(20.0, 3.0)
    audit, _ = looked(candidate, Open(40.0, 3.0), (30.0, 40.0))
    assert audit.sure > 40 / 30
    assert len(candidate.passed) == 8


def test_our_own_calls_pass_before_until_what_they_take_is_known_well_enough() -> None:
    quiet, usual, noisy = ([Open(8.0, noise), Open(10.0, noise)] for noise in (0.01, 0.55, 10.0))
    counts = [[{len(kind) for kind in arm} for arm in before(lines).before] for lines in (quiet, usual, noisy)]
    assert counts == [[{9}, {9}], [{9}, {9}], [{36}, {36}]]


def test_a_gain_that_chance_makes_of_none_is_looked_for_and_not_held_against_anybody() -> None:
    arms = [Arm(None, samples=[8.0, 9.9, 11.8] * 3), Arm(None, samples=[8.1, 10.2, 12.2] * 3)]  # type: ignore[arg-type]
    lines: Any = [Open(1.0, 40.0), Open(1.0, 40.0)]
    audit = Audit(pairs_of(lines), lambda line, *_: line, effect, lambda: 1, Random(3))  # type: ignore[return-value, arg-type]
    audit.look(arms, 1.0, OUTPUTS, Blamed(arms), lambda: "mixed", "gains")
    assert audit.sure == 1.0
    assert "of 0.00 us gained for sure" in audit.note
    assert len(lines[0].passed) == 8, "once, since nothing will be made of it"


def test_a_candidate_somewhat_noisier_than_its_incumbent_is_not_suspected_and_less_is_sure() -> None:
    audit, _ = looked(Open(20.0, 4.0), Open(30.0, 2.0), (20.0, 30.0))
    assert 1.3 < audit.sure < 1.5


@pytest.mark.parametrize("claims", [(10.0, 10.0), (12.0, 10.0), (9.9, 10.0)])
def test_where_no_gain_is_claimed_nobody_looks(claims: tuple[float, float]) -> None:
    candidate = Open(10.0)
    audit, timed = looked(candidate, Open(10.0), claims)
    assert (timed, candidate.passed, audit.note) == ([], [], "")
    assert audit.sure > 1e9


def test_a_call_that_must_be_tried_again_gets_other_values() -> None:
    candidate = Open(5.0)
    candidate.again_at = 3
    _, timed = looked(candidate, Open(10.0), (5.0, 10.0))
    assert len(set(candidate.passed)) == len(candidate.passed) == 9
    assert candidate.own == 10, "and so does one of our own"
    assert candidate.passed[2] not in [t.seed for t in timed]


def test_of_few_calls_more_is_uncertain_and_of_one_all() -> None:
    went = [Went(us, 70.0) for us in (9.0, 10.0, 11.0)]
    assert Middle.of(went).error > 2 * stats.median_error([9.0, 10.0, 11.0]), "by Student's t"
    assert Middle.of(went * 30).error == pytest.approx(stats.median_error([9.0, 10.0, 11.0] * 30), rel=0.05)
    assert (Middle.of(went[:1]).error, Middle.of([]).error) == (math.inf, math.inf)


def test_before_which_the_host_was_late_nothing_is_known_to_be_quiet() -> None:
    assert quiet([[Went(300.0, math.inf)], [Went(300.0, math.inf)]]) == [[], []]
    assert quiet([[Went(300.0, math.inf)], [Went(300.0, 70.0)]]) == [[], [Went(300.0, 70.0)]]


@pytest.mark.parametrize(("how", "rounds"), [("gains", 2), ("brief", 1)])
def test_a_round_that_told_nothing_is_not_enough(how: How, rounds: int) -> None:
    """All calls of our own but one of a kind were disturbed in the first."""
    candidate = Open(5.0)
    disturbed, going = Went(700.0, 700.0), candidate.known

    def known(kind: int) -> Went | None:
        own = going(kind)
        return disturbed if candidate.own <= 9 and own is not None else own

    candidate.known = known  # type: ignore[method-assign]
    audit, _ = looked(candidate, Open(10.0), (5.0, 10.0), how=how)
    assert len(candidate.passed) == 8 * rounds
    if rounds == 2:
        assert (audit.error < 0.2, audit.sure > 1.5) == (True, True)
    else:
        assert (audit.sure, audit.most, audit.error) == (1.0, 1.0, math.inf)


def test_where_our_own_calls_did_not_pass_before_a_gain_is_none() -> None:
    arms = [Arm(None, samples=[us] * 9) for us in (5.0, 10.0)]  # type: ignore[arg-type]
    lines: Any = [Open(5.0), Open(10.0)]
    audit = Audit(lambda _: nullcontext(Pair(lines, None)), lambda line, *_: line, effect, lambda: 1, Random(3))  # type: ignore[return-value, arg-type]
    assert audit.look(arms, 1.0, OUTPUTS, Blamed(arms), lambda: "mixed", "gains") == []
    assert (audit.sure, audit.most, lines[0].passed) == (1.0, 1.0, [])
    assert "cannot be had" in audit.note


def test_a_gain_that_cannot_be_looked_into_is_none() -> None:
    class Secret(Open):
        def through(self, values: Values, look: bool) -> Passed | None:
            raise NotShared

    audit, timed = looked(Secret(5.0), Open(10.0), (5.0, 10.0))
    assert (audit.sure, audit.most, audit.error, timed) == (1.0, 1.0, math.inf, [])
    nothing_claimed = looked(Secret(10.0), Open(10.0), (10.0, 10.0), how="all")[0]
    assert (nothing_claimed.sure, nothing_claimed.most, nothing_claimed.error) == (math.inf, math.inf, math.inf)
    assert "no gain is sure, here or of all" in nothing_claimed.note
    assert "cannot be had" in audit.note


def test_an_incumbent_that_fails_there_is_not_the_candidates_fault() -> None:
    with pytest.raises(IncumbentFault, match="gone"):
        looked(Open(5.0), Open(10.0, fault="gone"), (5.0, 10.0))
    with pytest.raises(Fault, match="gone") as caught:
        looked(Open(5.0, fault="gone"), Open(10.0), (5.0, 10.0))
    assert not isinstance(caught.value, IncumbentFault)
