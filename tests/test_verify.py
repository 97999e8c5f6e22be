"""Which checks are made, and what a failure says."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from random import Random

import pytest
import torch
from evaluating import PROBLEMS

from kopt_mcp.evaluator import checks as planning
from kopt_mcp.evaluator import verify
from kopt_mcp.evaluator.checks import PUBLIC_SEED, Check
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.inputs import GAPS, NEARER
from kopt_mcp.evaluator.process import CandidateProcess, Source
from kopt_mcp.evaluator.records import WorkloadResult
from kopt_mcp.evaluator.runners import Place
from kopt_mcp.evaluator.zygote import Zygote
from kopt_mcp.problem import DISTRIBUTIONS, LAYOUTS, Problem, Workload

FILE = PROBLEMS / "softmax.py"
PROBLEM: Problem = load_problem(FILE.read_bytes(), str(FILE))
CALM = "tiny+equal+alternating+sorted+zeros"


def planned(problem: Problem = PROBLEM, kind: str = "cpu") -> dict[str, list[Check]]:
    return {w.name: checks for w, checks in planning.plan(problem, problem.for_device(kind), kind)}


def test_the_cheapest_workload_comes_first_and_all_are_there() -> None:
    names = list(planned())
    assert names == ["3x257-fp32", "40x64-fp32", "16x300-fp32", "96x512-fp32"]


def test_every_workload_is_tried_with_the_public_seed_and_with_secret_ones() -> None:
    for checks in planned().values():
        seeds = [c.seed for c in checks]
        assert seeds.count(PUBLIC_SEED) == 1
        assert len(set(seeds)) >= 3


def test_secret_seeds_differ_from_plan_to_plan() -> None:
    first, second = ({c.seed for checks in planned().values() for c in checks} for _ in range(2))
    assert first & second == {PUBLIC_SEED}


def test_every_workload_sees_all_values_on_which_unsafe_shortcuts_show() -> None:
    for _ in range(10):
        for checks in planned().values():
            plain = {c.distribution for c in checks if c.layout == "contiguous" and not c.generated}
            assert {"mixed", "large", "outlier", "shifted"} <= plain


def test_all_values_that_tell_are_tried_at_a_generated_shape_of_more_than_the_smallest_size() -> None:
    """Whatever is drawn: a variance by the mean of squares shows on shifted values only, and of a single column never.
    One that was used at shapes that are not declared passed 17 of 60 verifications."""
    for _ in range(50):
        checks = [c for of in planned().values() for c in of if c.generated and c.layout == "contiguous"]
        for name, (low, _) in PROBLEM.vary.items():
            wide = {c.distribution for c in checks if int(c.case.params[name]) > low}
            assert {"mixed", "large", "outlier", "shifted"} <= wide


def test_every_other_workload_sees_the_calm_values_in_one_call() -> None:
    for name, checks in planned().items():
        assert [c.distribution for c in checks if c.layout == "contiguous" and not c.generated].count(CALM) == (
            name != "3x257-fp32"
        )


def test_where_there_are_fewer_rows_than_calm_values_each_is_tried_by_itself() -> None:
    problem = Problem(
        name="copy",
        reference=torch.clone,
        inputs=lambda make, n: [make.normal(n)],
        workloads=[Workload({"n": 8}), Workload({"n": 9})],
        bytes="8 * n",
        flops="0",
        bound="memory",
    )
    assert {c.distribution for c in planned(problem)["9-fp32"]} >= set(CALM.split("+"))


@pytest.mark.parametrize(("rows", "calm"), [(1, CALM.split("+")), (3, ["tiny+equal+alternating", "sorted+zeros"])])
def test_a_generated_shape_of_few_rows_sees_all_calm_values_too(rows: int, calm: list[str]) -> None:
    """It saw one of them by chance, and a kernel that is wrong on equal rows there passed one time in fourteen."""
    problem = Problem(
        name="copy",
        reference=torch.clone,
        inputs=lambda make, n, rows: [make.normal(rows, n)],
        workloads=[Workload({"n": 64, "rows": 8})],
        bytes="8 * n * rows",
        flops="0",
        bound="memory",
        vary={"n": (2, 60), "rows": (rows, rows)},
        layouts=LAYOUTS,
    )
    for _ in range(20):
        checks = [c for c in next(iter(planned(problem).values())) if c.generated and c.layout == "contiguous"]
        assert [c.distribution for c in checks if set(c.distribution.split("+")) <= set(CALM.split("+"))] == calm


def test_a_large_vector_sees_large_values() -> None:
    problem = Problem(
        name="copy",
        reference=torch.clone,
        inputs=lambda make, n: [make.normal(n)],
        workloads=[Workload({"n": 8}), Workload({"n": 8 << 20})],
        bytes="8 * n",
        flops="0",
        bound="memory",
    )
    for _ in range(20):
        public, reused, *others = (c.distribution for c in planned(problem)["8388608-fp32"])
        assert (public, reused in ("large", "outlier", "shifted")) == ("normal", True)
        assert others == ["far", *CALM.split("+")]


def test_of_values_for_which_a_problem_is_not_meant_none_are_drawn() -> None:
    narrow = load_problem(FILE.read_bytes().replace(b"layouts=LAYOUTS", b'distributions=("normal", "tiny")'), str(FILE))
    assert {c.distribution for checks in planned(narrow).values() for c in checks} == {"normal", "tiny"}


def test_the_first_workload_sees_every_distribution_and_every_poison() -> None:
    checks = planned()["3x257-fp32"]
    several = {c.distribution for c in checks if "+" in c.distribution}
    assert {c.distribution for c in checks} - {*several, *NEARER} == set(DISTRIBUTIONS)
    assert {d for one in several for d in one.split("+")} == set(CALM.split("+"))
    assert {c.poison for c in checks} == {0xFF, 0x55}


def test_layouts_and_generated_shapes_see_ordinary_values_and_all_that_tell() -> None:
    checks = [c for of in planned().values() for c in of]
    telling = {"mixed", "large", "outlier", "shifted", *NEARER}
    for special, ordinary in (
        ([c.distribution for c in checks if c.layout in GAPS], {2, 3}),
        ([c.distribution for c in checks if c.layout == "offset"], {2, 3}),
        ([c.distribution for c in checks if c.generated and c.layout == "contiguous"], {1}),
    ):
        calm = [d for d in special if set(d.split("+")) <= set(CALM.split("+"))]  # in several where there are few rows
        assert special.count("normal") in ordinary
        assert "+".join(calm) == CALM
        assert set(special) - {"normal", *calm} <= telling
        assert {"mixed", "large", "outlier", "shifted"} <= set(special)


def problem_named(name: str) -> Problem:
    file = PROBLEMS / f"{name}.py"
    return load_problem(file.read_bytes(), str(file))


def test_every_workload_sees_values_beyond_the_range_of_any_exponential() -> None:
    for _ in range(10):
        for checks in planned().values():
            assert {c.distribution for c in checks if c.layout == "contiguous" and not c.generated} & set(NEARER)


def test_values_for_which_a_problem_is_not_meant_are_not_drawn_farther_from_zero() -> None:
    for left_out, allowed in (("large", set()), ("mixed", {"far"})):
        only = ", ".join(repr(d) for d in DISTRIBUTIONS if d != left_out)
        text = FILE.read_bytes().replace(b"layouts=LAYOUTS", f"distributions=[{only}]".encode())
        narrow = load_problem(text, str(FILE))
        drawn = {c.distribution for _ in range(10) for checks in planned(narrow).values() for c in checks}
        assert drawn & set(NEARER) == allowed


def test_each_of_several_inputs_has_values_that_tell_while_the_others_are_ordinary() -> None:
    for _ in range(10):
        checks = [c for of in planned(problem_named("softmax_of_a_sum")).values() for c in of]
        alone = [c.distribution.partition(":") for c in checks if ":" in c.distribution]
        for position in "01":
            assert {name for name, _, at in alone if at == position} & {"large", "shifted"}
        assert all(name in ("large", "shifted", *NEARER) for name, _, _ in alone)
        assert {name for name, _, _ in alone} & set(NEARER), "farther from zero only one at a time"
    assert not [c for of in planned().values() for c in of if ":" in c.distribution], "of one input it is all of them"


def test_what_is_not_defined_far_from_zero_is_tried_nearer(place: Place) -> None:
    """Products of float16 values far from zero are beyond its range."""
    problem = Problem(
        name="scaled",
        reference=lambda x: x * 40,
        inputs=lambda make, rows, cols: [make.normal(rows, cols)],
        workloads=[Workload({"rows": 4, "cols": 9}, dtype="float16")],
        bytes="4 * rows * cols",
        flops="rows * cols",
        bound="memory",
    )
    case = problem.case(problem.workloads[0])
    text = b"def scaled(x):\n    return x * 40 if float(x.abs().max()) < 64 else x\n"
    (member,) = [CandidateProcess(place, problem, Source(text, sha256(text).hexdigest(), ".py"), 20.0).start()]
    groups = [(problem.workloads[0], [Check(case, 5, 0xFF, distribution)]) for distribution in ("far", "mixed-far")]
    results = [verify.verify([member], problem, [group], "cpu", lambda fraction, text: None)[0] for group in groups]
    member.close()
    assert [r.status for r in results] == ["INCORRECT_NUMERICAL"] * 2
    assert "large values" in results[0].detail
    assert "mixed values" in results[1].detail


def test_generated_shapes_take_no_more_bytes_than_the_largest_workload_and_each_param_may_still_be_at_its_largest() -> (
    None
):
    text = FILE.read_bytes().replace(b'"rows": (1, 16), "cols": (1, 600)', b'"rows": (1, 9000), "cols": (1, 40000)')
    wide = load_problem(text, str(FILE))
    most = 16 << 20  # what a CPU takes for a small workload; those of this problem are smaller
    cases = [c.case for _ in range(20) for of in planned(wide).values() for c in of if c.generated]
    assert max(c.bytes for c in cases) <= most
    assert {9000, 40000} <= {c.params["rows"] for c in cases} | {c.params["cols"] for c in cases}


def test_generated_shapes_are_not_only_the_awkward_ones() -> None:
    widths = {int(c.case.params["cols"]) for _ in range(20) for of in planned().values() for c in of if c.generated}
    awkward = {1, 3, 7, 13, 31, 61, 127, 251, 509} | {(1 << p) + d for p in range(1, 10) for d in (-1, 1)}
    assert widths & awkward
    assert len(widths - awkward) > 20


def test_every_param_that_may_vary_is_once_at_each_of_its_ends() -> None:
    for _ in range(20):
        cases = [c.case for of in planned().values() for c in of if c.generated]
        for name, ends in PROBLEM.vary.items():
            assert set(ends) <= {case.params[name] for case in cases}


def test_every_workload_of_integers_sees_one_value_only_and_the_ends_only() -> None:
    file = PROBLEMS / "histogram.py"
    histogram = load_problem(file.read_bytes(), str(file))
    for checks in planned(histogram).values():
        assert {"equal", "alternating"} <= {c.distribution for c in checks}


def test_every_layout_is_tried_at_sizes_that_no_vector_divides_and_on_tensors_that_held_other_values() -> None:
    remainders: dict[str, set[int]] = {"gaps": set(), "offset": set()}
    for _ in range(40):
        checks = [c for of in planned().values() for c in of]
        for name, layouts in (("gaps", GAPS), ("offset", ["offset"])):
            odd = [c for c in checks if c.layout in layouts and c.generated and c.distribution == "normal"]
            assert any(c.case.params["cols"] % 2 and c.case.params["rows"] > 1 and c.first_seed for c in odd)
            assert any(c.case.params["cols"] % 4 == 2 and c.case.params["rows"] > 1 and c.first_seed for c in odd)
            remainders[name] |= {c.case.params["cols"] % 8 for c in checks if c.layout in layouts}
    assert remainders == {"gaps": set(range(8)), "offset": set(range(8))}


def test_shapes_that_are_generated_for_their_own_sake_have_a_layout_too() -> None:
    for _ in range(10):
        checks = [c for of in planned().values() for c in of if c.generated]
        plain = {tuple(c.case.params.items()) for c in checks if c.layout == "contiguous"}
        assert any(tuple(c.case.params.items()) in plain for c in checks if c.layout != "contiguous")


def test_rows_lie_apart_in_every_way_in_every_verification() -> None:
    for _ in range(20):
        assert {"strided", "ragged", "cut"} <= {c.layout for of in planned().values() for c in of}
        slabs = [c.layout for of in planned(problem_named("softmax_of_slabs")).values() for c in of]
        assert {"strided", "ragged", "cut"} <= set(slabs)
        assert any(layout.startswith("sliced") for layout in slabs)
        assert "sliced" not in {c.layout for of in planned().values() for c in of}, "of two dimensions it is none"


@pytest.mark.parametrize(
    ("size", "low", "high", "odd"),
    [(6, 1, 9, 7), (7, 1, 9, 7), (600, 1, 600, 599), (2, 2, 2, 2), (0, 0, 0, 0), (0, 1, 5, 1)],
)
def test_a_size_is_made_odd_where_its_bounds_allow_it(size: int, low: int, high: int, odd: int) -> None:
    assert planning._beside(size, low, high) == odd


def test_a_size_leaves_the_rest_that_is_asked_for_where_its_bounds_allow_it() -> None:
    assert [planning._beside(size, 2, 20, 4, 2) for size in (1, 2, 3, 4, 19, 20)] == [2, 2, 6, 6, 18, 18]
    assert [planning._beside(size, 5, 9, 8, 4) for size in (5, 9)] == [5, 9]


def test_every_workload_is_called_on_tensors_that_an_earlier_call_has_seen() -> None:
    for checks in planned().values():
        reused = [c for c in checks if c.first_seed is not None]
        assert reused
        assert all(c.first_seed != c.seed for c in reused)


def test_every_layout_is_tried_somewhere_and_at_shapes_that_chance_chooses() -> None:
    file = PROBLEMS / "heads.py"
    heads = load_problem(file.read_bytes(), str(file))
    assert {c.layout for checks in planned(heads).values() for c in checks} == {*LAYOUTS, *GAPS}
    assert "permuted" not in {c.layout for checks in planned().values() for c in checks}  # of two dimensions it is none
    chosen = {name for _ in range(20) for name, checks in planned().items() if any(c.layout in GAPS for c in checks)}
    assert len(chosen) > 2


def test_of_several_inputs_one_alone_has_a_layout_then_another_and_then_all() -> None:
    file = PROBLEMS / "difference.py"
    difference = load_problem(file.read_bytes(), str(file))
    for _ in range(10):
        of = [c.layout.partition(":") for checks in planned(difference).values() for c in checks]
        for layouts in ({"strided", "ragged", "cut"}, {"offset"}):
            found = [(layout, position) for layout, _, position in of if layout in layouts]
            assert sorted(position for _, position in found if position) == ["0", "1"]
            assert len(found) in (7, 8), "all that tell are of all, and one may be of a generated shape"
            assert {layout for layout, _ in found} == layouts


def test_on_a_gpu_one_call_is_made_on_another_stream() -> None:
    assert not any(c.own_stream for checks in planned().values() for c in checks)
    assert sum(c.own_stream for checks in planned(kind="cuda").values() for c in checks) == 1


def test_repeats_have_one_seed() -> None:
    seeds = [c.seed for c in planned()["3x257-fp32"]]
    assert max(seeds.count(s) for s in seeds) == 3


def test_shapes_are_generated_only_where_the_problem_allows_it() -> None:
    def generated(problem: Problem) -> list[Check]:
        return [
            c for checks in planned(problem).values() for c in checks if c.case.params != dict(c.case.workload.params)
        ]

    assert generated(PROBLEM)
    assert all(1 <= c.case.params["rows"] <= 16 and 1 <= c.case.params["cols"] <= 600 for c in generated(PROBLEM))
    fixed = load_problem(FILE.read_bytes().replace(b'vary={"rows": (1, 16), "cols": (1, 600)},', b""), str(FILE))
    assert generated(fixed) == []


@pytest.mark.parametrize(("low", "high"), [(1, 1), (5, 5), (100, 120), (1, 4096), (1000, 1005)])
def test_an_awkward_size_is_within_its_range(low: int, high: int) -> None:
    rng = Random(0)
    assert all(low <= planning._awkward(rng, low, high) <= high for _ in range(50))


def test_a_large_workload_is_checked_less_often_but_not_on_harmless_values_only() -> None:
    problem = Problem(
        name="copy",
        reference=torch.clone,
        inputs=lambda make, n: [make.normal(8, n)],
        workloads=[Workload({"n": 1}), Workload({"n": 1 << 20})],
        bytes="64 * n",
        flops="0",
        bound="memory",
        layouts=LAYOUTS,
    )
    checks = planned(problem)["1048576-fp32"]
    public, reused, *others = (c.distribution for c in checks if c.layout == "contiguous")
    assert (public, others) == ("normal", ["mixed-far", CALM])
    assert reused == "large+outlier+shifted"
    gaps, offset = (c.layout for c in checks if c.layout != "contiguous")
    assert (gaps in GAPS, offset) == (True, "offset")


def test_of_a_large_workload_of_several_inputs_one_only_is_far_from_zero() -> None:
    problem = Problem(
        name="sum",
        reference=torch.add,
        inputs=lambda make, n: [make.normal(8, n), make.normal(8, n)],
        workloads=[Workload({"n": 1}), Workload({"n": 1 << 20})],
        bytes="96 * n",
        flops="8 * n",
        bound="memory",
    )
    for _ in range(10):
        _, _, mixed, far, calm = (c.distribution for c in planned(problem)["1048576-fp32"])
        assert (mixed, calm) == ("mixed", CALM)
        assert far in {f"{name}:{position}" for name in NEARER for position in (0, 1)}


def test_words_say_what_was_special() -> None:
    case = PROBLEM.case(PROBLEM.workloads[1])
    assert Check(case, 1, 0xFF).words() == "normally distributed values"
    assert Check(case, 1, 0xFF, layout="strided:1").words() == "normally distributed values, strided input 1"
    assert Check(case, 1, 0xFF, "large:0").words() == "large values of input 0 only"
    special = Check(case, 1, 0xFF, "sorted", "offset", own_stream=True, first_seed=2)
    assert special.words() == (
        "sorted values, offset inputs, in tensors that held other values at the call before, "
        "on a stream that is not the default one"
    )
    assert (
        Check(PROBLEM.case(PROBLEM.workloads[1], rows=7), 1, 0xFF).words().endswith("generated shape rows=7, cols=257")
    )


def team(place: Place, text: str, size: int) -> list[CandidateProcess]:
    """Several processes of one candidate."""
    source = Source(text.encode(), sha256(text.encode()).hexdigest(), ".py")
    return [CandidateProcess(place, PROBLEM, source, 20.0).start() for _ in range(size)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, seed_cache = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("cache")
    made = Place(Zygote("cpu", fork=False), folder, "cpu", 1 << 20, seed_cache)
    yield made
    made.zygote.close()


SOFTMAX = "import torch\ndef softmax(x):\n    {}return torch.softmax(x, dim=-1)\n"


def test_a_team_makes_every_check_once_and_adds_up_what_it_finds(place: Place) -> None:
    groups = planning.plan(PROBLEM, PROBLEM.for_device("cpu"), "cpu")
    said: list[float] = []
    members = team(place, SOFTMAX.format(""), 2)
    results = verify.verify(members, PROBLEM, groups, "cpu", lambda fraction, text: said.append(fraction))
    assert [(r.workload, r.status) for r in results] == [(w.name, "PASSED") for w, _ in groups]
    assert [r.checks for r in results] == [len(checks) for _, checks in groups]
    assert all(r.error_ratio is not None and r.error_ratio <= 1 for r in results)
    assert said == sorted(said)
    assert verify.remarks(members[0], results) == ["torch's own operators compute in it: _softmax"]
    assert [member.close() for member in members] == ["", ""]


def test_who_puts_all_outputs_into_one_buffer_is_said_to(place: Place) -> None:
    text = "import torch\nout = torch.empty(1 << 20)\ndef softmax(x):\n    return torch.softmax(x, -1, out={})\n"
    results = [WorkloadResult("any", "PASSED")]
    said = []
    for where in ("out[: x.numel()].view(x.shape)", "torch.empty_like(x)"):
        (member,) = team(place, text.format(where), 1)
        member.workload(PROBLEM.case(PROBLEM.workloads[1]), [])
        said.append(verify.OVERWRITTEN in verify.remarks(member, results))
        member.close()
    assert said == [True, False]


def test_small_pieces_are_taken_while_one_that_fills_the_memory_is_worked_on() -> None:
    cases = sorted((PROBLEM.case(w) for w in PROBLEM.for_device("cpu")), key=lambda case: case.bytes)
    pieces = [(case.workload, [Check(case, 1, 0xFF)]) for case in cases]
    work = verify._Work(pieces, cases[-3].bytes, lambda fraction, text: None)
    names = [case.workload.name for case in cases]
    taken = [work.next(last=last) for last in (True, True, False)]
    assert [piece and piece[0].name for piece in taken] == [names[-1], names[0], names[1]]
    assert taken[0] is not None
    work.done(taken[0], WorkloadResult(names[-1], "PASSED"))
    piece = work.next(last=True)
    assert piece is not None
    assert piece[0].name == names[-2]
    work.done(piece, None)
    assert work.next(last=False) is None, "after a fault of our own nobody waits"


def test_who_has_only_large_pieces_left_waits_until_the_one_that_fills_the_memory_is_done() -> None:
    cases = sorted((PROBLEM.case(w) for w in PROBLEM.for_device("cpu")), key=lambda case: case.bytes)[-2:]
    work = verify._Work([(c.workload, [Check(c, 1, 0xFF)]) for c in cases], 0.0, lambda fraction, text: None)
    waits = threading.Event()

    class Told(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return super().wait(timeout)

    work._changed = Told()
    first = work.next(last=False)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(work.next, True)
        assert waits.wait(60)
        assert not second.done()
        assert first is not None
        work.done(first, WorkloadResult(first[0].name, "PASSED"))
        piece = second.result(60)
    assert piece is not None
    assert [first[0].name, piece[0].name] == [case.workload.name for case in cases]


def test_a_team_stops_at_what_is_wrong_and_says_it_last(place: Place) -> None:
    groups = planning.plan(PROBLEM, PROBLEM.for_device("cpu"), "cpu")
    members = team(place, SOFTMAX.format("if x.shape[1] == 300: raise KeyError('k')\n    "), 2)
    results = verify.verify(members, PROBLEM, groups, "cpu", lambda fraction, text: None)
    assert (results[-1].workload, results[-1].status) == ("16x300-fp32", "RUNTIME_ERROR")
    assert "KeyError" in results[-1].detail
    assert verify.remarks(members[0], results) == []
    assert len(results) < len(groups)
    for member in members:
        member.close()
