"""The evaluator's own code in a runner: every way to put something else in its place shows in its memory."""

import builtins
import ctypes
import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from evaluating import PROBLEMS

from kopt_mcp.evaluator import candidate, peeking, runner, sealing, timing  # noqa: F401 - what a runner has loaded
from kopt_mcp.evaluator.candidate import Candidate
from kopt_mcp.evaluator.channel import Channel
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.peeking import Piece, Read
from kopt_mcp.evaluator.process import CandidateProcess, Source
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs
from kopt_mcp.evaluator.runners import Place
from kopt_mcp.evaluator.seals import Seal, Seals
from kopt_mcp.evaluator.timing import WallClock
from kopt_mcp.evaluator.zygote import Zygote
from kopt_mcp.problem import Problem

SAMPLE = {"distribution": "normal", "layout": "contiguous", "spin_us": 0.0, "warm": False, "keep": True}


class Inside:
    """What a runner has, in this process."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.channel = Channel(ours, "a nonce")
        self.items: list[Any] = [Candidate("cpu", 1 << 12, None)]  # type: ignore[arg-type]
        self.clock = self.items[0].clock
        self.seals = Seals(os.getpid(), sealing.of_runner(self.items, self.channel, self.clock))

    def close(self) -> None:
        self.channel.close()
        self.theirs.close()


@pytest.fixture
def inside() -> Iterator[Inside]:
    made = Inside()
    yield made
    made.close()


def rebinds_a_method(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timing.EventClock, "evict", lambda self: None)


def rebinds_a_name_of_a_module(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(candidate, "late", lambda tensors: lambda: None)


def gives_a_function_other_code(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timing.EventClock.sample, "__code__", timing.WallClock.sample.__code__)


def shadows_a_builtin_in_a_module(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timing, "int", lambda x: 0, raising=False)


def rebinds_a_builtin(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(builtins, "getattr", getattr.__call__)


def rebinds_torchs_event(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda.Event, "elapsed_time", lambda self, end: 0.001)


def puts_a_method_before_that_of_tensors_base(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.Tensor, "copy_", lambda self, other: self, raising=False)


def rebinds_what_a_message_is_written_with(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(json, "dumps", lambda message, **_: "{}")


def puts_a_method_into_the_socket(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(socket.socket, "sendall", lambda self, data: None, raising=False)


def gives_the_call_another_class(inside: Inside, patch: pytest.MonkeyPatch) -> None:
    class Other(Candidate):
        __slots__ = ()

    patch.setattr(inside.items[0], "__class__", Other)


def gives_the_call_another_clock(inside: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inside.items[0], "_made_clock", WallClock(1 << 12))


def gives_the_clock_another_buffer(inside: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inside.clock, "_buffer", torch.zeros(1))


def gives_the_runner_another_call(inside: Inside, _: pytest.MonkeyPatch) -> None:
    inside.items[0] = object()


def gives_the_channel_another_socket(inside: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inside.channel, "_sock", inside.theirs)


def has_every_call_told(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "getprofile", lambda: None)
    sys.setprofile(lambda *_: None)


TRICKS: list[Callable[[Inside, pytest.MonkeyPatch], None]] = [
    rebinds_a_method,
    rebinds_a_name_of_a_module,
    gives_a_function_other_code,
    shadows_a_builtin_in_a_module,
    rebinds_a_builtin,
    rebinds_torchs_event,
    puts_a_method_before_that_of_tensors_base,
    rebinds_what_a_message_is_written_with,
    puts_a_method_into_the_socket,
    gives_the_call_another_class,
    gives_the_call_another_clock,
    gives_the_clock_another_buffer,
    gives_the_runner_another_call,
    gives_the_channel_another_socket,
    has_every_call_told,
]


@pytest.mark.parametrize("trick", TRICKS, ids=lambda t: t.__name__)
def test_what_is_put_in_the_place_of_our_code_is_seen(
    inside: Inside, trick: Callable[[Inside, pytest.MonkeyPatch], None]
) -> None:
    inside.seals.require_unbroken()
    before = sys.getprofile()
    with pytest.MonkeyPatch.context() as patch:
        trick(inside, patch)
        try:
            inside.seals.require_unbroken()
            caught = None
        except Fault as fault:
            caught = fault
        finally:
            sys.setprofile(before)
    assert caught is not None
    assert (caught.status, "in the evaluator's own code" in caught.detail) == ("CHEATED", True)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no sys.monitoring")
def test_a_tool_that_is_told_of_every_call_is_seen(inside: Inside) -> None:
    monitoring: Any = getattr(sys, "monitoring", None)
    tool = next(number for number in range(6) if monitoring.get_tool(number) is None)
    monitoring.use_tool_id(tool, "a tool")
    try:
        with pytest.raises(Fault, match="the tools that are told of every call"):
            inside.seals.require_unbroken()
    finally:
        monitoring.free_tool_id(tool)


def test_the_names_of_all_tools_are_sealed_from_the_first_on_though_another_was_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever the interpreter keeps them: here 40 bytes into its state, the first two taken."""
    taken: dict[int, Any] = {0: "a debugger", 1: "a profiler"}
    fake = SimpleNamespace(get_tool=taken.get, use_tool_id=taken.__setitem__, free_tool_id=taken.pop)
    states: list[int] = []

    def memory(state: int, most: int) -> bytes:
        states.append(state)
        return bytes(40) + b"".join(id(taken[tool]).to_bytes(8, sys.byteorder) for tool in range(3))

    monkeypatch.setattr(sys, "monitoring", fake, raising=False)
    monkeypatch.setattr(sealing, "readable", memory)
    (seal,) = sealing._monitoring()
    assert (seal.address, seal.size) == (states[0] + 40, 6 * 8)
    assert list(taken) == [0, 1], "what was used to find them is free again"


def test_a_constant_that_is_changed_in_memory_is_seen(inside: Inside) -> None:
    constants, other = timing.EventClock.sample.__code__.co_consts, 850.5
    item = ctypes.c_void_p.from_address(id(constants) + tuple.__basicsize__ + 8 * constants.index(1000))
    before, item.value = item.value, id(other)
    try:
        with pytest.raises(Fault, match=r"it changed a constant of .*EventClock\.sample"):
            inside.seals.require_unbroken()
    finally:
        item.value = before


def test_what_the_evaluator_and_honest_kernels_do_breaks_no_seal(inside: Inside) -> None:
    one = inside.items[0]
    spec = {"kind": "normal", "shape": [4, 6], "dtype": "float32", "args": {"scale": 1.0, "shift": 0.0}}
    one.workload({"inputs": [{"spec": spec}], "params": {}, "outputs": [], "literals": []})
    one._function = torch.compile(lambda x: 2 * x, backend="eager")
    for seed in range(40):  # often enough that the interpreter specialises the functions
        one.sample({**SAMPLE, "seed": seed})
        inside.channel.send({"op": "sample", "seed": seed})
    one.warm({**SAMPLE, "seed": 1, "count": 2})
    one.forget({})
    inside.seals.require_unbroken()


class Told:
    """Memory that holds what the test says."""

    def __init__(self, *answers: bytes | OSError) -> None:
        self.answers, self.pieces = list(answers), list[Piece]()

    def __call__(self, pid: int, pieces: list[Piece]) -> Read:
        self.pieces = pieces
        return self._next

    def _next(self) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


SEALS = [Seal("a", 100, 8), Seal("c", 200, 8), Seal("b", 104, 8), Seal("d", 208, 16)]


def test_pieces_that_touch_are_read_as_one_and_the_broken_one_is_named() -> None:
    memory = Told(bytes(36), bytes(36), bytes(8) + b"\1" + bytes(27), bytes(20) + b"\1" + bytes(15))
    made = Seals(1, SEALS, memory)
    assert memory.pieces == [(100, 12), (200, 24)]
    made.require_unbroken()
    for name in ("b", "d"):
        with pytest.raises(Fault, match=f"it changed {name} in"):
            made.require_unbroken()


def test_what_differs_where_no_seal_is_named_is_a_change_all_the_same() -> None:
    """As from a reader that hands out more than it was asked for."""
    made = Seals(1, SEALS, Told(bytes(36), bytes(36) + b"more"))
    with pytest.raises(Fault, match="it changed something in the evaluator's own code") as caught:
        made.require_unbroken()
    assert caught.value.status == "CHEATED"


def test_memory_that_is_gone_is_a_trick_and_a_process_that_is_gone_is_none() -> None:
    made = Seals(1, SEALS, Told(bytes(36), OSError(errno.ESRCH, ""), OSError(errno.EFAULT, "")))
    made.require_unbroken()
    with pytest.raises(Fault, match="moved what the evaluator has in its memory"):
        made.require_unbroken()


def test_objects_that_lie_otherwise_than_known_are_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_KEYS", 24)
    with pytest.raises(peeking.Unreadable):
        sealing.of_modules([timing], {})


def has_classes_without_tables(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sealing, "gc", SimpleNamespace(get_referents=lambda one: []))


def has_dicts_that_say_their_length_elsewhere(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sealing, "_USED", 8)


def has_dicts_of_other_entries(_: Inside, patch: pytest.MonkeyPatch) -> None:
    true = peeking.own_memory
    patch.setattr(sealing, "own_memory", lambda at, size: true(at, size) if size <= 8 else bytes(size))


def lies(patch: pytest.MonkeyPatch, address: int) -> None:
    """Memory that holds something else than is known at one address."""
    true = peeking.own_memory
    patch.setattr(sealing, "own_memory", lambda at, size: bytes(size) if at == address else true(at, size))


def has_tuples_of_other_items(_: Inside, patch: pytest.MonkeyPatch) -> None:
    lies(patch, id(timing.EventClock.sample.__code__.co_consts) + tuple.__basicsize__)


def has_lists_of_other_items(inside: Inside, patch: pytest.MonkeyPatch) -> None:
    lies(patch, int.from_bytes(peeking.own_memory(id(inside.items) + 24, 8), sys.byteorder))


def has_objects_of_other_slots(inside: Inside, patch: pytest.MonkeyPatch) -> None:
    lies(patch, id(inside.channel))


def keeps_what_traces_elsewhere(_: Inside, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sealing, "_THREAD_BYTES", 8)


def keeps_the_names_of_tools_elsewhere(_: Inside, patch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    fake = SimpleNamespace(get_tool=[None].__getitem__, use_tool_id=lambda tool, _: used.append(tool))
    fake.free_tool_id = used.remove
    patch.setattr(sys, "monitoring", fake, raising=False)
    patch.setattr(sealing, "readable", lambda address, most: b"" if used == [0] else b"no tool is in use")


OTHER_PYTHONS: dict[Callable[[Inside, pytest.MonkeyPatch], None], str] = {
    has_classes_without_tables: "no table of",
    has_dicts_that_say_their_length_elsewhere: "a dict is laid out differently: kopt_mcp",
    has_dicts_of_other_entries: "no entries of kopt_mcp",
    has_tuples_of_other_items: "a tuple is laid out differently",
    has_lists_of_other_items: "a list is laid out differently",
    has_objects_of_other_slots: "the channel is laid out differently",
    keeps_what_traces_elsewhere: "a thread's state is laid out differently",
    keeps_the_names_of_tools_elsewhere: "the interpreter's state is laid out differently",
}
"""What another version of CPython may have, and what is said of it."""


@pytest.mark.parametrize("other", OTHER_PYTHONS, ids=lambda t: t.__name__)
def test_a_python_that_lays_out_its_objects_otherwise_is_told_of_and_left_as_it_was(
    inside: Inside, other: Callable[[Inside, pytest.MonkeyPatch], None]
) -> None:
    before = sys.getprofile(), sys.gettrace()
    with pytest.MonkeyPatch.context() as patch:
        other(inside, patch)
        with pytest.raises(peeking.Unreadable, match=OTHER_PYTHONS[other]):
            sealing.of_runner(inside.items, inside.channel, inside.clock)
    assert (sys.getprofile(), sys.gettrace()) == before
    inside.seals.require_unbroken()
    assert sealing.of_runner(inside.items, inside.channel, inside.clock)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, seed_cache = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("cache")
    made = Place(Zygote("cpu", fork=False), folder, "cpu", 1 << 12, seed_cache)
    made.sealed = True
    yield made
    made.spares.close()
    made.zygote.close()


FILE = PROBLEMS / "softmax.py"
PROBLEM: Problem = load_problem(FILE.read_bytes(), str(FILE))
HONEST = "import torch\ndef softmax(x):\n    return torch.softmax(x, dim=-1)\n"
PATCHES = "import sys\nsys.modules['kopt_mcp.evaluator.timing'].EventClock.evict = lambda self: None\n" + HONEST
PATCHES_FOR_A_MOMENT = (
    "import sys, time, torch\n"
    "clock = sys.modules['kopt_mcp.evaluator.timing'].WallClock\n"
    "true = clock.evict\n"
    "def softmax(x):\n"
    "    clock.evict = lambda self: None\n"
    "    time.sleep(0.01)\n"
    "    clock.evict = true\n"
    "    return torch.softmax(x, dim=-1)\n"
)


def sampled(place: Place, text: str, calls: int = 40) -> dict[str, str]:
    """The isolation of a candidate that was asked for timed calls."""
    with CandidateProcess(place, PROBLEM, Source(text.encode(), "a" * 64, ".py"), 20.0) as running:
        running.start()
        case = PROBLEM.case(PROBLEM.workloads[1])
        running.workload(case, describe_outputs(expected_outputs(PROBLEM, case, 1, "cpu")))
        for seed in range(calls):
            running.ask("sample", **SAMPLE, seed=seed)
        running.ask("forget")
        return running.isolation


def test_a_runner_that_is_left_as_it_was_is_sealed(place: Place) -> None:
    assert sampled(place, HONEST)["seals"] == "on"


@pytest.mark.parametrize("text", [PATCHES, PATCHES_FOR_A_MOMENT], ids=["for good", "for a moment within a call"])
def test_a_runner_whose_clock_is_patched_has_cheated(place: Place, text: str) -> None:
    with pytest.raises(Fault, match=r"it changed .*timing.*_?evict") as caught:
        sampled(place, text)
    assert caught.value.status == "CHEATED"


def test_memory_that_may_not_be_read_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, pid: int, pieces: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(peeking.Memory, "__init__", refuse)
    assert sampled(place, PATCHES)["seals"] == "off: Operation not permitted"


def test_operators_of_torch_that_are_replaced_are_seen() -> None:
    before = candidate.dispatched()
    library = torch.library.Library("aten", "IMPL")
    library.impl("sum", lambda x, **_: x, "CUDA")
    assert candidate.dispatched() != before
    library._destroy()
    assert candidate.dispatched() == before
    with torch.device("cpu"):
        assert candidate.dispatched() != before, "a mode stands before every operator"


def test_nothing_behind_a_class_is_sealed_with_it() -> None:
    """Its size counts a table that lies elsewhere: what happened to lie behind it changed, and an honest candidate had
    cheated."""
    words = list(sealing._words("Problem", Problem, [type(Problem), Problem.__mro__, Problem.__bases__], start=8))
    assert type.__sizeof__(Problem) > type.__basicsize__
    assert words
    assert all(seal.address + seal.size <= id(Problem) + type.__basicsize__ for seal in words)
