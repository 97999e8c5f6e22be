"""Timing two arms: what becomes of claims, with processes that claim what the test tells them to."""

import dataclasses
import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from evaluating import PROBLEMS

from kopt_mcp.evaluator import bench
from kopt_mcp.evaluator.answers import checked
from kopt_mcp.evaluator.arms import Arm, Timed
from kopt_mcp.evaluator.audit import How
from kopt_mcp.evaluator.bench import WorkloadBench
from kopt_mcp.evaluator.claimed import Claimed
from kopt_mcp.evaluator.compare import BadReference
from kopt_mcp.evaluator.faults import Fault, IncumbentFault
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.limits import PhysicalLimits
from kopt_mcp.evaluator.records import Ceilings, Ratio, WorkloadResult
from kopt_mcp.evaluator.watching import fingerprint
from kopt_mcp.problem import Problem, Workload

FILE = PROBLEMS / "softmax.py"
PROBLEM: Problem = load_problem(FILE.read_bytes(), str(FILE))
LIMITS = PhysicalLimits(Ceilings(1.0, 1.0, {"fp32": 1e-3}, "a slow machine"), 0, "cpu")
NONE = PhysicalLimits(Ceilings(1e9, 1e9, {}, "an infinitely fast machine"), 0, "cpu")


def benched(*processes: Any, limits: PhysicalLimits = NONE, problem: Problem = PROBLEM) -> WorkloadBench:
    """A workload timed by what the processes claim."""
    workload = problem.workloads[0]
    sampler = Claimed(problem.case(workload), 0.0, Random(0))
    return WorkloadBench(problem, workload, [Arm(p) for p in processes], sampler, limits)


class Claiming:
    """A candidate process that computes what it is asked to and claims what it likes."""

    def __init__(self, us: float, function: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self.us, self.tail_us = us, 0.0
        self.function = function or (lambda x: torch.softmax(x, dim=-1))
        self.case: Any = None
        self.settled = 0
        self.kept: dict[int, torch.Tensor] = {}

    def workload(self, case: Any, outputs: Any, alone: bool = True) -> bool:
        changed, self.case = case is not self.case, case
        return changed

    def take_turn(self) -> bool:
        return True

    def ask(self, op: str, alone: bool = True, **fields: Any) -> dict[str, Any]:
        if op == "warm":
            return {"us": [self.us] * fields["count"]}
        if op == "settle":
            self.settled += 1
            return {}
        if op == "forget":
            self.kept.clear()
            return {}
        if op == "fetch":
            return {"outputs": [fields["seed"]], "print": []}
        x = draw(self.case.inputs, self.case.literals, fields["seed"], "cpu", fields["distribution"]).args[0]
        self.kept[fields["seed"]] = self.function(x)
        prints = fingerprint([self.kept[fields["seed"]]])
        return {"us": self.us, "host_us": self.us, "tail_us": self.tail_us, "print": prints}

    def outputs(self, reply: dict[str, Any]) -> list[torch.Tensor]:
        return [self.kept[reply["outputs"][0]]]


def timed(*processes: Any, limits: PhysicalLimits = NONE, floor: float = 0.0) -> WorkloadResult:
    work = benched(*processes, limits=limits)
    work.warm_up()
    while not work.decided:
        work.block()
        work.decide(floor)
    return work.finish()


def test_the_ratio_is_incumbent_over_candidate() -> None:
    result = timed(Claiming(5.0), Claiming(10.0))
    assert result.status == "PASSED"
    assert result.ratio is not None
    assert result.ratio.low < result.ratio.value == 2.0 < result.ratio.high
    assert result.ratio.high / result.ratio.low < 1.2, "only what two processes of one kernel differ by for good"
    assert result.timing is not None
    assert (result.timing.latency_us, result.timing.method) == (5.0, "wall")
    assert result.checks >= 2


def test_a_large_effect_needs_fewer_blocks_than_none() -> None:
    large, none = timed(Claiming(1.0), Claiming(10.0)).ratio, timed(Claiming(10.0), Claiming(10.0)).ratio
    assert large is not None
    assert none is not None
    assert large.blocks < none.blocks == bench.MIN_BLOCKS


@pytest.mark.parametrize(
    ("kind", "us", "blocks", "lost"),
    [
        ("cuda", 106.0, 3, True),
        ("cuda", 103.0, 5, False),
        ("cuda", 94.0, 5, False),
        ("cuda", 85.0, 3, False),
        ("cpu", 106.0, 5, False),
        ("cpu", 120.0, 3, True),
    ],
)
def test_a_loss_on_a_gpu_needs_to_be_less_large_for_an_early_end(
    monkeypatch: pytest.MonkeyPatch, kind: str, us: float, blocks: int, lost: bool
) -> None:
    work = benched(Claiming(us), Claiming(100.0), limits=PhysicalLimits(NONE.ceilings, 0, kind))
    monkeypatch.setattr(work, "_compare", lambda *_: None)
    while not work.decided:
        work.block()
        work.decide(0.0)
    assert (len(work.ratios), work.lost) == (blocks, lost)


class Work:
    """A workload that needs so many blocks."""

    among = 1

    def __init__(self, needs: int, lost: bool = False) -> None:
        self.needs, self.will_be_lost = needs, lost
        self.blocks = 0
        self.decided = self.lost = False
        self.ratio: Ratio | None = None
        self.how = ""

    def block(self) -> None:
        self.blocks += 1

    def interval(self) -> Ratio | None:
        return self.ratio

    def decide(self, floor: float, workloads: int) -> None:
        assert (floor, workloads) == (0.02, self.among)
        self.decided = self.blocks == self.needs
        self.lost = self.decided and self.will_be_lost

    def finish(self, how: str) -> None:
        self.how = how


def measured(monkeypatch: pytest.MonkeyPatch, works: Any, **how: Any) -> list[tuple[int, int]]:
    """Rounds of blocks."""
    monkeypatch.setattr(Work, "among", len(works))
    rounds: list[tuple[int, int]] = []
    bench.measure(works, 0.02, lambda *now: rounds.append(now), **how)
    return rounds


@pytest.mark.parametrize(
    ("works", "blocks"),
    [
        ([Work(3), Work(8)], [3, 8]),
        ([Work(3), Work(99)], [3, bench.MAX_BLOCKS]),
        ([Work(3, lost=True), Work(4), Work(8)], [3, 4, bench.MIN_BLOCKS]),
        ([Work(7, lost=True), Work(99)], [7, 7]),
    ],
)
def test_a_workload_that_is_lost_ends_the_long_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch, works: list[Work], blocks: list[int]
) -> None:
    rounds = measured(monkeypatch, works)
    assert [work.blocks for work in works] == blocks
    assert {work.how for work in works} == {"brief" if any(work.lost for work in works) else "gains"}
    assert [number for number, _ in rounds] == list(range(1, max(blocks) + 1))
    assert rounds[2] == (3, sum(work.needs > 3 for work in works))


def test_where_every_time_may_be_asked_for_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    works = [Work(3, lost=True), Work(8)]
    measured(monkeypatch, works, thorough=True)
    assert [(work.blocks, work.how) for work in works] == [(3, "all"), (8, "all")]


def test_what_takes_too_long_ends_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BUDGET_S", -1.0)
    works = [Work(99), Work(3)]
    measured(monkeypatch, works)
    assert [work.blocks for work in works] == [bench.MIN_BLOCKS, 3]


@pytest.mark.parametrize(("low", "how"), [(1.05, "all"), (0.95, "gains")])
def test_all_workloads_are_looked_at_where_the_candidate_may_be_accepted(
    monkeypatch: pytest.MonkeyPatch, low: float, how: str
) -> None:
    works = [Work(5), Work(5)]
    for work in works:
        work.ratio = Ratio(1.1, low, 1.2, 5)
    works[1].ratio = Ratio(1.1, 1.09, 1.12, 5)
    measured(monkeypatch, works)
    assert {work.how for work in works} == {how}


def test_a_loss_is_one_beyond_what_the_noise_floor_of_one_of_several_workloads_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = benched(Claiming(113.0), Claiming(100.0), limits=PhysicalLimits(NONE.ceilings, 0, "cuda"))
    monkeypatch.setattr(work, "_compare", lambda *_: None)
    blocks(work, 5)
    for workloads, lost in ((1, True), (5, True), (7, False)):
        work.decide(0.01, workloads)
        assert work.lost is lost, f"its own floor may be {workloads} %, and the bar twice that"


def test_one_arm_alone_has_times_and_no_ratio() -> None:
    result = timed(Claiming(10.0))
    assert result.ratio is None
    assert result.incumbent is None
    assert result.timing is not None


def test_a_time_that_stands_for_less_than_can_be_measured_is_called_so() -> None:
    notes = []
    for us in (0.01, 10.0):
        work = benched(Claiming(us))
        work.warm_up()
        work.block()
        work.finish()
        notes.append(work.note)
    assert "0.05 us stands for that, and is no measured time" in notes[0]
    assert notes[1] == ""


@pytest.mark.parametrize("us", [0.0, -1.0, 1e12])
def test_a_claim_of_no_time_or_of_more_than_there_was_is_a_lie(us: float) -> None:
    with pytest.raises(Fault) as caught:
        timed(Claiming(us), Claiming(10.0))
    assert caught.value.status == "CHEATED"
    assert not isinstance(caught.value, IncumbentFault)


@pytest.mark.parametrize("us", [float("nan"), float("inf"), True, "1.0", None, [1.0]])
def test_a_claim_that_is_no_number_is_no_answer(us: Any) -> None:
    with pytest.raises(Fault, match="gave an answer to 'sample' that is none") as caught:
        checked("sample", {"op": "sample", "us": us, "host_us": 1.0, "tail_us": 0.0, "print": [1, 2]})
    assert caught.value.status == "CHEATED"


def test_an_answer_to_something_else_is_none() -> None:
    with pytest.raises(Fault, match="answered 'enqueue' to 'load'") as caught:
        checked("load", {"op": "enqueue", "outputs": []})
    assert caught.value.status == "CHEATED"


def test_the_first_call_after_a_switch_is_never_counted() -> None:
    candidate = Claiming(10.0)
    result = timed(candidate, Claiming(10.0))
    assert result.ratio is not None
    assert 2 <= candidate.settled / result.ratio.blocks <= 4, "one for each visit, or for each part of it"


def test_a_wrong_output_of_a_timed_call_is_found() -> None:
    with pytest.raises(Fault) as caught:
        timed(Claiming(5.0, torch.zeros_like), Claiming(10.0))
    assert caught.value.status == "INCORRECT_NUMERICAL"
    assert "the output of a timed call is wrong" in caught.value.detail


def test_a_kernel_that_is_wrong_in_the_calls_that_count_is_always_found() -> None:
    class RightWhenAlone(Claiming):
        def ask(self, op: str, alone: bool = True, **fields: Any) -> dict[str, Any]:
            reply = super().ask(op, alone, **fields)
            if op == "sample" and fields["distribution"] == "normal":
                self.kept[fields["seed"]].zero_()
                reply["print"] = fingerprint([self.kept[fields["seed"]]])
            return reply

    with pytest.raises(Fault, match="the output of a timed call is wrong"):
        timed(RightWhenAlone(5.0), Claiming(10.0))


def test_an_output_that_changes_after_the_call_is_found() -> None:
    class Later(Claiming):
        def outputs(self, reply: dict[str, Any]) -> list[torch.Tensor]:
            return [t + 1 for t in super().outputs(reply)]

    with pytest.raises(Fault) as caught:
        timed(Later(5.0), Claiming(10.0))
    assert (caught.value.status, "changed after" in caught.value.detail) == ("CHEATED", True)


def test_an_incumbent_that_fails_is_not_the_candidates_fault() -> None:
    with pytest.raises(IncumbentFault):
        timed(Claiming(5.0), Claiming(10.0, torch.zeros_like))


def test_work_that_goes_on_after_the_call_is_found() -> None:
    candidate = Claiming(5.0)
    candidate.tail_us = 1000.0
    with pytest.raises(Fault, match="1000 us of work went on after") as caught:
        timed(candidate, Claiming(10.0))
    assert caught.value.status == "CHEATED"


def test_a_time_that_physics_does_not_allow_is_refused() -> None:
    with pytest.raises(Fault, match=r"5\.25 us where this device needs at least") as caught:
        timed(Claiming(5.0), Claiming(10.0), limits=LIMITS)
    assert caught.value.status == "CHEATED"


def test_outputs_that_fit_the_cache_are_not_counted_into_the_floor() -> None:
    case = PROBLEM.case(PROBLEM.workloads[0])
    gpu = PhysicalLimits(Ceilings(1.0, 1.0, {}, ""), 1 << 30, "cuda")
    with pytest.raises(Fault):
        gpu.require_possible(case, 1, 0.9 * case.bytes / 1e3 - 1)
    gpu.require_possible(case, int(case.bytes / 2), 0.9 * case.bytes / 2e3 + 1)


def test_a_gain_that_the_clock_outside_does_not_see_is_suspect() -> None:
    work = benched(Claiming(5.0), Claiming(10.0))
    arms = work._arms
    work.warm_up()
    work.block()
    for arm, us, unseen in ((arms[0], 100.0, 4900.0), (arms[1], 4000.0, 1000.0)):
        arm.samples, arm.unseen, arm.tails = [us] * 9, [unseen] * 9, [0.0] * 9
    with pytest.raises(Fault, match=r"3900\.0 us cannot be seen from outside") as caught:
        work.finish()
    assert caught.value.status == "SUSPECT"


def test_a_kernel_that_takes_a_short_cut_in_timed_calls_is_wrong_on_other_values() -> None:
    unsafe = Claiming(5.0, lambda x: x.exp() / x.exp().sum(dim=-1, keepdim=True))
    overflowing = dataclasses.replace(PROBLEM, distributions=("large",))
    work = benched(unsafe, problem=overflowing)
    with pytest.raises(Fault, match="the output of a timed call is wrong"):
        work.warm_up()


class Looking:
    """An audit that has one call of the candidate's compared, with the output that the test wants."""

    note = "all of it is seen"
    distribution = "normal"

    def __init__(self, output: Callable[[int], torch.Tensor], sure: float, most: float) -> None:
        self.output, self.sure, self.most = output, sure, most
        self.longest_us, self.seen, self.error = math.inf, 1.0, 0.0
        self.how, self.highest = "", math.inf

    def look(
        self, arms: Any, ratio: float, outputs: list[dict[str, Any]], blame: Any, hard: Any, how: str
    ) -> list[Timed]:
        self.how = how
        assert outputs[0]["dtype"] == "float32"
        assert ratio == pytest.approx(2.0, rel=0.1), "that of the blocks"
        with blame(arms[1]):
            return [Timed(5.0, 50.0, 77, [self.output(77)], self.distribution or hard())]


def audited(
    output: Callable[[int], torch.Tensor], sure: float = math.inf, most: float = math.inf, how: How = "gains"
) -> tuple[WorkloadBench, WorkloadResult]:
    work = benched(Claiming(5.0), Claiming(10.0))
    work._audit = looking = Looking(output, sure, most)  # type: ignore[assignment]
    work.warm_up()
    blocks(work, 6)
    result = work.finish(how)
    assert looking.how == how
    return work, result


def test_calls_that_passed_an_audit_are_compared_and_its_note_names_the_workload() -> None:
    case = PROBLEM.case(PROBLEM.workloads[0])

    def right(seed: int) -> torch.Tensor:
        return torch.softmax(draw(case.inputs, case.literals, seed, "cpu").args[0], dim=-1)

    work, result = audited(right, how="brief")
    assert result.status == "PASSED"
    assert work.note == f"{PROBLEM.workloads[0].name}: all of it is seen"
    with pytest.raises(Fault, match="the output of a timed call is wrong"):
        audited(lambda s: torch.zeros_like(draw(case.inputs, case.literals, s, "cpu").args[0]))


def test_calls_on_hard_values_in_an_audit_must_be_right_on_those(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Looking, "distribution", "")
    monkeypatch.setattr(WorkloadBench, "_hard", lambda self: "large")
    case = PROBLEM.case(PROBLEM.workloads[0])

    def large(seed: int) -> torch.Tensor:
        return draw(case.inputs, case.literals, seed, "cpu", "large").args[0]

    assert audited(lambda s: torch.softmax(large(s), dim=-1))[1].status == "PASSED"
    with pytest.raises(Fault, match="the output of a timed call is wrong"):
        audited(lambda s: large(s).exp() / large(s).exp().sum(dim=-1, keepdim=True))


def test_a_gain_is_sure_and_reported_only_as_far_as_the_harness_has_seen_it() -> None:
    case = PROBLEM.case(PROBLEM.workloads[0])

    def right(seed: int) -> torch.Tensor:
        return torch.softmax(draw(case.inputs, case.literals, seed, "cpu").args[0], dim=-1)

    def found(sure: float, most: float) -> tuple[float, float, float]:
        result = audited(right, sure, most)[1]
        assert result.ratio is not None
        assert result.timing is not None
        return result.ratio.low, result.ratio.value, result.timing.latency_us

    near = pytest.approx
    assert found(math.inf, math.inf) == (near(2.0, rel=0.1), near(2.0, rel=0.05), near(5.0, rel=0.05))
    assert found(1.3, 2.5) == (1.3, near(2.0, rel=0.05), near(5.0, rel=0.05))
    assert found(1.2, 1.25) == (1.2, 1.25, near(8.0, rel=0.05))
    assert found(1.0, 1.0) == (1.0, 1.0, near(10.0, rel=0.05))
    not_believed, believed = audited(right, 1.0, 1.0)[1].timing, audited(right, 1.3, 2.5)[1].timing
    assert not_believed is not None
    assert believed is not None
    assert not_believed.p10_us == not_believed.latency_us == not_believed.p90_us, "no call is quicker than is believed"
    assert (not_believed.warm_us, believed.warm_us) == (None, 5.0)


def test_calls_that_take_next_to_nothing_by_the_harnesss_clock_are_not_believed() -> None:
    work = benched(Claiming(5.0), Claiming(10.0))
    work._audit = looking = Looking(lambda seed: torch.zeros(1), math.inf, math.inf)  # type: ignore[assignment]
    work._limits = dataclasses.replace(LIMITS, kind="cuda")
    looking.longest_us = 0.0
    work.warm_up()
    blocks(work, 6)
    with pytest.raises(Fault, match=r"0\.00 us where this device needs at least") as caught:
        work.finish()
    assert caught.value.status == "CHEATED"


def test_what_goes_wrong_with_the_incumbent_in_an_audit_is_its_own_fault() -> None:
    def gone(seed: int) -> torch.Tensor:
        raise Fault("RUNTIME_ERROR", "gone")

    with pytest.raises(IncumbentFault, match="gone"):
        audited(gone)


def test_workloads_are_combined_by_their_geometric_mean() -> None:
    results = [
        WorkloadResult("a", "PASSED", ratio=Ratio(4.0, 4.0, 4.0, 5)),
        WorkloadResult("b", "PASSED", ratio=Ratio(1.0, 0.9, 1.1, 9)),
        WorkloadResult("c", "PASSED"),
    ]
    ratios = [r.ratio for r in results]
    combined = bench.combine(ratios, [(math.inf, 0.0)] * 3)
    assert combined is not None
    assert combined.value == pytest.approx(2.0)
    assert combined.low < 2.0 < combined.high
    assert combined.blocks == 5
    assert bench.combine(ratios[2:], [(math.inf, 0.0)]) is None


def test_a_gain_that_is_sure_in_none_of_several_workloads_is_not_sure_in_all_of_them() -> None:
    lies = [Ratio(1.04, 1.0, 1.05, 5)] * 8
    combined = bench.combine(lies, [(1.002, 0.01)] * 8)
    assert combined is not None
    assert combined.value == pytest.approx(1.04)
    assert combined.low < 1.0, "one process, one clock: what is claimed and not seen may be missing in each"
    seen = bench.combine(lies, [(1.05, 0.01)] * 8)
    assert seen is not None
    assert 1.02 < seen.low < 1.04, "what the clock is uncertain of is noise"
    held = bench.combine(lies, [(math.inf, 0.0)] * 8)
    assert held is not None
    assert held.low > 1.02


def test_a_workload_that_the_clock_did_not_look_at_adds_nothing_to_what_is_sure() -> None:
    looking = Looking(lambda seed: torch.zeros(1), math.inf, math.inf)
    work = benched(Claiming(99.1), Claiming(100.0))
    assert work.seen == (math.inf, 0.0), "it holds the clock itself"
    work._audit = looking  # type: ignore[assignment]
    assert work.seen == (1.0, 0.0)
    ratios = [Ratio(1.0098, 1.0097, 1.01, 5)] * 7
    combined = bench.combine([*ratios, Ratio(1.03, 1.025, 1.035, 5)], [*[work.seen] * 7, (1.03, 0.002)])
    assert combined is not None
    assert combined.low < 1.01


def test_nothing_is_sure_of_all_where_the_clock_could_not_look_at_one() -> None:
    combined = bench.combine([Ratio(1.5, 1.45, 1.55, 5)] * 2, [(1.5, 0.001), (1.0, math.inf)])
    assert combined is not None
    assert (combined.value, combined.low) == (pytest.approx(1.5), 1.0)


def blocks(work: WorkloadBench, count: int) -> None:
    for _ in range(count):
        work.block()


def test_hard_values_come_between_the_calls_that_count_too() -> None:
    calls = 0

    def unsafe_after_the_first_look(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.softmax(x, dim=-1) if calls < 5 else x.exp() / x.exp().sum(dim=-1, keepdim=True)

    work = benched(Claiming(5.0, unsafe_after_the_first_look), Claiming(10.0))
    work.warm_up()
    with pytest.raises(Fault, match="the output of a timed call is wrong"):
        blocks(work, 100)


def test_hard_values_of_timed_calls_are_of_each_input_alone_by_turns_and_of_all_and_some_are_far_from_zero() -> None:
    file = PROBLEMS / "softmax_of_a_sum.py"
    work = benched(Claiming(5.0), problem=load_problem(file.read_bytes(), str(file)))
    work._calm_is_due = True
    for _ in range(20):
        telling = [work._hard() for _ in range(6)][::2]
        assert {"0", "1"} <= {one.partition(":")[2] for one in telling}
    drawn = {work._hard().partition(":")[0] for _ in range(400)}
    assert drawn >= {"large", "mixed", "outlier", "shifted", "far", "mixed-far"}


def test_where_nothing_can_be_said_of_values_far_from_zero_those_nearer_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty times such values are beyond float16, and of large ones they are not."""
    halves = [Workload({"rows": 4, "cols": 9}, "float16")]
    times_sixty = dataclasses.replace(PROBLEM, reference=lambda x: x * 60, scale=None, workloads=halves)
    monkeypatch.setattr(WorkloadBench, "_hard", lambda self: "far")
    work = benched(Claiming(5.0, lambda x: x * 60), problem=times_sixty)
    assert work._hard_values()[1] == "large"
    looked_at: list[str] = []
    one = work._sampler.one
    monkeypatch.setattr(work._sampler, "one", lambda arm, seed, named: looked_at.append(named) or one(arm, seed, named))
    work.warm_up()
    work._prepare_hard_values()
    work._look_at_hard_values(work._arms[0])
    assert looked_at == ["large", "far", "large"]


def test_where_nothing_can_be_said_of_hard_values_at_all_ordinary_ones_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WorkloadBench, "_hard", lambda self: "far")
    work = benched(Claiming(5.0), Claiming(10.0))
    expected = work._expected
    asked: list[str] = []

    def undefined_but_of_ordinary_values(seed: int, distribution: str) -> list[Any]:
        asked.append(distribution)
        if distribution != "normal":
            raise BadReference("infinite")
        return expected(seed, distribution)

    monkeypatch.setattr(work, "_expected", undefined_but_of_ordinary_values)
    _, distribution, outputs = work._hard_values()
    assert asked == ["far", "large", "normal"]
    assert distribution == "normal"
    assert len(outputs) == 1, "those of the softmax"


def test_a_look_for_which_the_reference_has_no_answer_whatever_the_values_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = benched(Claiming(5.0, torch.zeros_like), Claiming(10.0))
    work._next_hard = (7, "far")
    work._sampler.expect([])
    tried: list[str] = []

    def undefined(seed: int, distribution: str) -> list[Any]:
        tried.append(distribution)
        raise BadReference("infinite")

    monkeypatch.setattr(work, "_expected", undefined)
    work._arms[0].process.workload(work._case, [])
    work._look_at_hard_values(work._arms[0])
    assert tried == ["far", "large", "normal"]
    assert work._right_on_hard == [], "nothing was seen to be right either"
    assert work._arms[0].checks == 0


def test_an_output_that_the_tasks_own_check_refuses_is_wrong_though_ours_lets_it_pass() -> None:
    particular = dataclasses.replace(PROBLEM, check=lambda args, outputs: "the rows must be sorted")
    with pytest.raises(Fault, match="the task's own check refuses the output of a timed call") as caught:
        benched(Claiming(5.0), problem=particular).warm_up()
    assert caught.value.status == "INCORRECT_NUMERICAL"
    asked: list[int] = []

    def is_content(args: list[Any], outputs: list[torch.Tensor]) -> str:
        asked.append(len(outputs))
        return ""

    content = dataclasses.replace(PROBLEM, check=is_content)
    benched(Claiming(5.0), problem=content).warm_up()
    assert asked == [1], "of one output, once: that of the first look"


def test_where_nothing_can_be_said_of_values_far_from_zero_they_are_not_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = benched(Claiming(5.0), Claiming(10.0))
    drawn = [work._hard() for _ in range(200)]
    assert any("far" in one for one in drawn)

    def undefined(seed: int, distribution: str) -> list[Any]:
        if "far" in distribution:
            raise BadReference("infinite")
        return []

    monkeypatch.setattr(work, "_expected", undefined)
    found = [work._hard_values()[1] for _ in range(200)]
    assert not any("far" in one for one in [*found, *(work._hard() for _ in range(200))])


class Lucky(Claiming):
    """Takes its time in the calls that happen to be looked at, and claims the others to be quick."""

    looked_at: frozenset[int] = frozenset()

    def ask(self, op: str, alone: bool = True, **fields: Any) -> dict[str, Any]:
        reply = super().ask(op, alone, **fields)
        return {**reply, "us": 10.0 if fields["seed"] in self.looked_at else 5.0} if op == "sample" else reply


@pytest.mark.parametrize("chance", range(4))
def test_a_gain_must_be_one_of_the_calls_that_were_seen_to_be_right(
    monkeypatch: pytest.MonkeyPatch, chance: int
) -> None:
    """Of twice the speed, by luck with every look, no more than a third is sure, and mostly none."""
    seeds = iter(range(1, 1_000_000))
    monkeypatch.setattr(bench, "new_seed", lambda: next(seeds))
    candidate = Lucky(5.0)
    work = benched(candidate, Claiming(10.0))
    work._random = Random(chance)
    visit = work._sampler.visit

    def lucky(arm: Arm, chosen: list[int], check: bool) -> list[Any]:
        candidate.looked_at = frozenset(chosen) if check else frozenset()
        return visit(arm, chosen, check)

    monkeypatch.setattr(work._sampler, "visit", lucky)
    work.warm_up()
    blocks(work, bench.MAX_BLOCKS)
    found = work.interval()
    assert found is not None
    assert found.low < 4 / 3
