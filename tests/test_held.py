"""The clock in the harness: inputs that come with the word to go on, outputs read out of the stopped process."""

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from random import Random
from typing import Any

import pytest
import torch
from evaluating import PROBLEMS

from kopt_mcp.evaluator import held, snapshots
from kopt_mcp.evaluator.arms import Arm, Timed
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.held import Empty, Held
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.process import CandidateProcess, Source
from kopt_mcp.evaluator.records import RESOLUTION_US
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs, judge_all
from kopt_mcp.evaluator.runners import Place
from kopt_mcp.evaluator.shared import INPUTS_AT, SharedMemory
from kopt_mcp.evaluator.snapshots import Glance, Piece, Spot, can_be_read, memory_of, rebuilt
from kopt_mcp.evaluator.timing import WallClock
from kopt_mcp.evaluator.zygote import Zygote
from kopt_mcp.problem import Make, Problem, Spec, Workload

FILE = PROBLEMS / "softmax.py"
SOFTMAX: Problem = load_problem(FILE.read_bytes(), str(FILE))
SMALL = SOFTMAX.case(SOFTMAX.workloads[1])
EVICTOR = WallClock(1 << 16)


def add_one(make: Make, n: int) -> list[Spec | int]:
    return [make.normal(n), n]


def add_in_place(x: torch.Tensor, n: int) -> None:
    x.add_(1.0)


IN_PLACE = Problem(
    name="add_one",
    reference=add_in_place,
    inputs=add_one,
    workloads=[Workload({"n": 100})],
    bytes="8 * n",
    flops="n",
    bound="memory",
    mutates=(0,),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(
        Zygote("cpu", fork=False), tmp_path_factory.mktemp("place"), "cpu", 1 << 20, tmp_path_factory.mktemp("c")
    )
    yield made
    made.spares.close()
    made.zygote.close()


def timed(
    place: Place, body: str, problem: Problem = SOFTMAX, read: Any = memory_of, seed: int = 5
) -> tuple[Timed, Any]:
    """One looked-at call of a candidate, and its process."""
    text = f"import torch\ndef {problem.entry}(x, *rest):\n    {body}\n".encode()
    case = SMALL if problem is SOFTMAX else problem.case(problem.workloads[0])
    sampler = Held(problem, case, EVICTOR, Empty(), Random(0), read)
    sampler.expect(describe_outputs(expected_outputs(problem, case, seed, "cpu")))
    with CandidateProcess(place, problem, Source(text, sha256(text).hexdigest(), ".py"), 20.0).start() as process:
        sampler.wake_up(Arm(process), 1)
        return sampler.one(Arm(process), seed, "normal"), process


@pytest.mark.parametrize(
    "body",
    [
        "return torch.softmax(x, dim=-1)",
        "return [torch.softmax(x, dim=-1)]",
        "return torch.softmax(x, dim=-1).t().contiguous().t()",
        "return torch.softmax(torch.cat([x, x]), dim=-1)[: len(x)]",
    ],
)
def test_the_outputs_are_those_of_the_call_however_they_lie(place: Place, body: str) -> None:
    made, _ = timed(place, body)
    assert made.outputs is not None
    assert judge_all(made.outputs, expected_outputs(SOFTMAX, SMALL, 5, "cpu")).status == "PASSED"
    assert 0 < made.us < made.wall_us


def test_an_output_that_may_not_be_read_is_asked_for(place: Place) -> None:
    def refuse(pid: int, address: int, size: int) -> torch.Tensor:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    made, process = timed(place, "return torch.softmax(x, dim=-1)", read=refuse)
    assert made.outputs is not None
    assert judge_all(made.outputs, expected_outputs(SOFTMAX, SMALL, 5, "cpu")).status == "PASSED"
    assert process.isolation["snapshots"] == "off: Operation not permitted"


def test_outputs_may_be_pieces_of_one_buffer_that_lie_between_each_other(place: Place) -> None:
    made, _ = timed(place, "both = torch.cat([x, -x], 1); return both.chunk(2, 1)")
    assert made.outputs is not None
    assert torch.equal(made.outputs[0], -made.outputs[1])


def test_a_candidate_that_keeps_its_memory_to_itself_is_not_asked(place: Place) -> None:
    def refuse(pid: int, address: int, size: int) -> torch.Tensor:
        if pid == place.zygote.pid:
            return memory_of(pid, address, size)
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with pytest.raises(Fault, match="keeps its memory from being read"):
        timed(place, "return torch.softmax(x, dim=-1)", read=refuse)


def test_an_input_that_is_updated_in_place_is_the_first_output(place: Place) -> None:
    made, _ = timed(place, "x.add_(1.0)", IN_PLACE)
    (x, _) = draw(IN_PLACE.case(IN_PLACE.workloads[0]).inputs, [], 5, "cpu").args
    assert made.outputs is not None
    assert torch.equal(made.outputs[0], x + 1)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("out = torch.softmax(x, -1); x.zero_(); return out", "INCORRECT_NUMERICAL", "changed its input 0"),
        (
            "import ctypes; ctypes.memset(x.data_ptr() - 1, 0, 1); return torch.softmax(x, -1)",
            "INCORRECT_NUMERICAL",
            "or memory beside it",
        ),
        ("return x", "INCORRECT_NUMERICAL", "shares the memory of an input"),
        (
            "out = torch.softmax(x, -1); return out, out",
            "INCORRECT_NUMERICAL",
            "two outputs share memory",
        ),
        ("return x.sum(-1, True).expand_as(x)", "INCORRECT_SHAPE", "has elements that share memory"),
        ("return torch.zeros(1 << 24)", "INCORRECT_SHAPE", "larger than expected"),
        ("return [x.clone()] * 65", "CHEATED", "gave an answer to 'timed' that is none"),
        ("return 7", "INCORRECT_SHAPE", "is a int, expected a tensor"),
        ("raise KeyError('k')", "RUNTIME_ERROR", "KeyError"),
        ("import os; os._exit(3)", "RUNTIME_ERROR", "exited with code 3 during 'timed'"),
    ],
)
def test_what_a_timed_call_may_not_do_is_seen(place: Place, body: str, status: str, words: str) -> None:
    with pytest.raises(Fault, match=words) as caught:
        timed(place, body)
    assert caught.value.status == status


ANSWERS_ITSELF = """import os, struct, sys
    frame = sys._getframe()
    while "token" not in frame.f_locals:
        frame = frame.f_back
    token, channel = frame.f_locals["token"], frame.f_locals["channel"]
    said = struct.pack("<IQQI", 1, x.data_ptr(), 8, {dimensions})
    channel.signal(token + said + struct.pack("<qq", 1, 8) * {dimensions})
    os._exit(0)"""


@pytest.mark.parametrize(
    ("dimensions", "status", "words"),
    [
        (64 * 64 + 1, "CHEATED", "gave an answer to 'timed' that is none"),
        (64 * 64, "RUNTIME_ERROR", "exited with code 0 during 'timed'"),  # such an answer is read, and then it is gone
    ],
)
def test_an_answer_of_more_dimensions_than_tensors_have_is_none(
    place: Place, dimensions: int, status: str, words: str
) -> None:
    with pytest.raises(Fault, match=words) as caught:
        timed(place, ANSWERS_ITSELF.format(dimensions=dimensions))
    assert caught.value.status == status


def test_an_output_that_was_not_there_when_the_call_had_said_that_it_was_done_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TooEarly(Glance):
        """As at memory that is mapped only afterwards."""

        def __call__(self, pid: int, places: Sequence[Spot]) -> None:
            super().__call__(pid, [Spot(16, place.size) for place in places])

    monkeypatch.setattr(held, "Glance", TooEarly)
    with pytest.raises(Fault, match="could not be read when the timed call had said that it was done") as caught:
        timed(place, "return torch.softmax(x, dim=-1)")
    assert caught.value.status == "CHEATED"


def glanced(places: list[Spot], like: Sequence[Spot] = ()) -> list[Piece] | None:
    """Pieces of outputs in this process."""
    glance = Glance(like)
    glance(os.getpid(), places)
    return glance.pieces()


def test_a_glance_notes_what_an_output_holds_at_that_moment() -> None:
    outputs = [torch.arange(1000.0), torch.zeros(0), torch.ones(3)]
    pieces = glanced([Spot(t.data_ptr(), 4 * t.numel()) for t in outputs])
    assert pieces is not None
    assert {p.output for p in pieces} == {0, 1, 2}
    now = [t.view(torch.uint8) for t in outputs]
    assert all(p.is_in(now) for p in pieces)
    outputs[2][1] = 2.0
    assert [p.output for p in pieces if not p.is_in(now)] == [2] * sum(p.output == 2 for p in pieces)
    assert glanced([]) == []
    assert glanced([Spot(16, 100)]) is None


def test_a_glance_is_worked_out_ahead_for_outputs_as_they_were_and_anew_for_others() -> None:
    old, new = torch.arange(1000.0), torch.arange(1000.0).flip(0)
    lay = Spot(old.data_ptr(), 4000)
    for now in ([Spot(new.data_ptr(), 4000)], [Spot(new.data_ptr(), 2000)], [Spot(new.data_ptr(), 4000)] * 2, []):
        pieces = glanced(now, like=[lay])
        assert pieces is not None
        assert len(pieces) == (64 if now else 0)
        assert all(p.is_in([new.view(torch.uint8)[: n.size] for n in now]) for p in pieces)


class Clock:
    """Stands for the time, which passes only where somebody is kept waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("look", [True, False])
@pytest.mark.parametrize(("read_s", "us"), [(0.0001, 0.0), (0.001, 700.0), (0.02, 19_700.0)])
def test_who_keeps_its_outputs_from_being_read_has_taken_until_they_were(
    place: Place, monkeypatch: pytest.MonkeyPatch, look: bool, read_s: float, us: float
) -> None:
    """At every call, looked at or not: what was noted may have been made by then. What is usual is forgiven."""
    clock = Clock()

    class Slow(Glance):
        def __call__(self, pid: int, places: Sequence[Spot]) -> None:
            super().__call__(pid, places)
            clock.now += read_s

    monkeypatch.setattr(held, "Glance", Slow)
    monkeypatch.setattr(held, "time", clock)
    sampler = Held(SOFTMAX, SMALL, EVICTOR, Empty(150.0, 150.0, 30.0), Random(0))
    sampler.expect(describe_outputs(expected_outputs(SOFTMAX, SMALL, 5, "cpu")))
    text = b"import torch\ndef softmax(x):\n    return torch.softmax(x, -1)\n"
    source = Source(text, sha256(text).hexdigest(), ".py")
    with CandidateProcess(place, SOFTMAX, source, 20.0).start() as process:
        made = sampler._sample(Arm(process), 5, look=look)
    assert made.us == pytest.approx(max(us, RESOLUTION_US))
    assert sampler.effect(10_000.0) == pytest.approx(0.018), (
        "both may be hidden: while it wakes up, and while it is read"
    )


@pytest.mark.parametrize(("count", "elements", "least", "most"), [(1, 1, 1, 1), (1, 5000, 60, 70), (40, 64, 40, 120)])
def test_some_of_every_input_that_is_an_output_is_noted_and_not_more_of_many(
    count: int, elements: int, least: int, most: int
) -> None:
    specs = [Spec("normal", (elements,), "float32", {"scale": 1.0, "shift": 0.0})] * count
    inputs = draw(specs, [], 3, "cpu")
    laid = held._Laid(SharedMemory(), inputs, INPUTS_AT)
    for _ in range(20):
        laid._pieces.clear()
        laid.glance(range(count))
        assert {position for position, *_ in laid._pieces} == {*range(count)}
        assert least <= len(laid._pieces) <= most


def test_a_glance_at_an_output_with_gaps_looks_at_its_elements() -> None:
    buffer = torch.zeros(1 << 18)
    column = buffer.as_strided((2, 4), (100_000, 32_000))
    spot = Spot(buffer.data_ptr(), 4 * (100_000 + 3 * 32_000 + 1), ((2, 400_000), (4, 128_000)))
    pieces = glanced([spot])
    assert pieces is not None
    column.fill_(1.0)
    now = buffer.view(torch.uint8)[: spot.size]
    assert not any(piece.is_in([now]) for piece in pieces)
    lie = Spot(spot.address, spot.size, ((1 << 62, 1 << 62),) * 100)
    assert glanced([lie]) is not None


def test_memory_is_read_where_there_is_some() -> None:
    here = ctypes.create_string_buffer(b"some bytes")
    assert bytes(memory_of(os.getpid(), ctypes.addressof(here), 4).tolist()) == b"some"
    with pytest.raises(OSError, match="Bad address"):
        memory_of(os.getpid(), 16, 4)


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {"shape": [2, 2], "dtype": "float32"},
        {"shape": [2, 2], "strides": [2, 1], "dtype": "float16"},
        {"shape": [2, 2], "strides": [2], "dtype": "float32"},
        {"shape": [2, 2], "strides": [1 << 40, 1], "dtype": "float32"},
        {"shape": [-2, 2], "strides": [2, 1], "dtype": "float32"},
        {"shape": [2, 2], "strides": [2, 1], "dtype": "nn"},
        {"shape": [2, 2], "strides": [2, 1], "dtype": "float64"},
    ],
)
def test_a_description_that_does_not_fit_the_bytes_is_a_lie(meta: Any) -> None:
    with pytest.raises(Fault) as caught:
        rebuilt([torch.zeros(16, dtype=torch.uint8)], [meta], [Spot(64, 16)])
    assert caught.value.status == "CHEATED"
    fits = {"shape": [2], "strides": [3], "dtype": "float32"}
    with pytest.raises(Fault, match="otherwise than before"):
        rebuilt([torch.zeros(16, dtype=torch.uint8)], [fits], [Spot(64, 16)])  # it had said nothing of gaps
    assert rebuilt([torch.zeros(16, dtype=torch.uint8)], [fits], [Spot(64, 16, ((2, 12),))])[0].shape == (2,)
    with pytest.raises(Fault, match="other outputs than it returned"):
        rebuilt([], [meta], [])


def test_a_system_that_reads_no_other_processs_memory_says_so_and_notes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As macOS has no such call."""
    here = torch.zeros(16)
    monkeypatch.setattr(snapshots, "_libc", object)
    with pytest.raises(OSError, match="Function not implemented") as caught:
        memory_of(os.getpid(), here.data_ptr(), 4)
    assert caught.value.errno == errno.ENOSYS
    assert glanced([Spot(here.data_ptr(), 64)]) is None
    assert not can_be_read(os.getpid(), memory_of)


def test_a_process_is_readable_where_its_memory_is_and_it_is_there() -> None:
    assert can_be_read(os.getpid(), memory_of)
    assert not can_be_read(1 << 22, memory_of), "which none ever is"


def test_outputs_that_lie_in_each_other_are_refused_whatever_they_hold() -> None:
    memory = [torch.arange(4.0).view(torch.uint8)] * 2
    meta = {"shape": [4], "strides": [1], "dtype": "float32"}
    apart, within = [Spot(64, 16), Spot(80, 16)], [Spot(64, 16), Spot(72, 16)]
    assert [t.tolist() for t in rebuilt(memory, [meta, meta], apart)] == [[0, 1, 2, 3]] * 2
    with pytest.raises(Fault, match="two outputs share memory") as caught:
        rebuilt(memory, [meta, meta], within)
    assert caught.value.status == "INCORRECT_NUMERICAL"


def test_who_was_looked_at_may_be_looked_at_again_in_the_same_visit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its input is wrong afterwards: were that the last look, the calls behind it could be left out."""
    sampler = Held(SOFTMAX, SMALL, EVICTOR, Empty(), Random(0))
    looks: list[bool] = []
    monkeypatch.setattr(sampler, "_sample", lambda arm, seed, look: looks.append(look))
    visits = []
    for _ in range(100):
        looks.clear()
        sampler.visit(Arm(None), [1, 2, 3], check=True)  # type: ignore[arg-type]
        visits.append(tuple(looks))
    assert all(any(visit) for visit in visits)
    assert {(True, True, True), (True, False, False), (False, True, True), (False, False, True)} <= set(visits)


def test_values_that_were_prepared_are_used_after_others_were_drawn_like_those_of_any_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A candidate can see how long it waits between two calls, and hard values take longer to be drawn."""
    drawn: list[str] = []

    def noted(recipes: Any, literals: Any, seed: int, device: str, distribution: str) -> Any:
        drawn.append(distribution)
        return draw(recipes, literals, seed, device, distribution)

    monkeypatch.setattr(held, "draw", noted)
    sampler = Held(SOFTMAX, SMALL, EVICTOR, Empty(), Random(0))
    sampler.prepare(7, "outlier")
    sampler._inputs(6, "normal")
    found = sampler._inputs(7, "outlier")
    assert drawn == ["outlier", "normal", "normal"]
    assert torch.equal(found.args[0], draw(SMALL.inputs, SMALL.literals, 7, "cpu", "outlier").args[0])
    sampler._inputs(7, "outlier")
    assert drawn[3:] == ["outlier"]
