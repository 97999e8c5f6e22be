"""Calls between two moments that the harness knows, with a process and a driver that stand for the device."""

import ctypes
import dataclasses
import mmap
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from evaluating import PROBLEMS

from kopt_mcp.evaluator import candidate as runner_side
from kopt_mcp.evaluator import gate as gates
from kopt_mcp.evaluator import line as words
from kopt_mcp.evaluator import passage, queueing
from kopt_mcp.evaluator.answers import checked
from kopt_mcp.evaluator.candidate import Candidate
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.gate import Gate, Values
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.inputs import draw
from kopt_mcp.evaluator.known import at_last
from kopt_mcp.evaluator.line import Line
from kopt_mcp.evaluator.passage import NotShared, Passage, Went
from kopt_mcp.evaluator.queueing import DONE_AT, GO_AT
from kopt_mcp.evaluator.snapshots import rebuilt
from kopt_mcp.problem import Problem, Workload

FILE = PROBLEMS / "softmax.py"
PROBLEM: Problem = load_problem(FILE.read_bytes(), str(FILE))
CASE = PROBLEM.case(PROBLEM.workloads[0])
OUTPUTS = [{"shape": [1], "dtype": "float32", "bytes": 4}]


class Device:
    """A driver whose handles are addresses of this process."""

    def __init__(self) -> None:
        self.mapped = 0
        self.refuses = False

    def handle(self, address: int) -> tuple[bytes, int]:
        return address.to_bytes(64, "little"), 0

    def open(self, handle: bytes) -> tuple[int, int]:
        if self.refuses:
            raise OSError(400, "no such handle")
        self.mapped += 1
        return int.from_bytes(handle, "little"), 1 << 20

    def view(self, address: int, size: int) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)

    def close(self, address: int) -> None:
        self.mapped -= 1


def described(tensor: torch.Tensor) -> dict[str, Any]:
    size = tensor.numel() * tensor.element_size()
    handle = tensor.data_ptr().to_bytes(64, "little").hex()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"shape": list(tensor.shape), "dtype": dtype, "bytes": size, "offset": 0, "handle": handle}


def lying(out: torch.Tensor) -> dict[str, Any]:
    lies = {"shape": list(out.shape), "strides": list(out.stride()), "dtype": "float32"}
    return {**described(out.flatten().view(torch.uint8)), "lies": lies}


class Process:
    """A runner whose calls are made by `works` once the word to go on lets them, and over if it `ends` them then.

    One that does not queue waits for the device itself, as a call does that looks at a value: it answers afterwards.
    """

    def __init__(self, works: Callable[[torch.Tensor], torch.Tensor], queues: bool = True, ends: bool = True) -> None:
        self.works, self.queues, self.ends = works, queues, ends
        self.pid, self.words = 1, {GO_AT: 7, DONE_AT: 7}
        self.shared = self.runner = self.turn = self.memory = self  # type: Any
        self.channel, self._theirs = socket.socketpair()
        self.held = draw(CASE.inputs, CASE.literals, 9, "cpu")
        self.made = torch.zeros_like(self.held.args[0])
        self.waiting: dict[int, bool] = {}
        self.log: list[str] = []
        self.runs, self.tells, self.woken, self.alone = True, False, False, False
        self.answered = 0

    def close(self) -> None:
        self.channel.close()
        self._theirs.close()

    def peek(self, at: int) -> int:
        return self.words[at]

    def poke(self, at: int, value: int) -> None:
        self.words[at] = value
        self.log += ["helped"] if at == DONE_AT and value in self.waiting else []
        self._work()

    def write(self, at: int, ticket: int) -> None:
        self.log += ["go"] if at == GO_AT else []
        self.poke(at, ticket)

    def wait(self, at: int, ticket: int) -> None:
        self.log.append("over" if self.words[at] == ticket else "waits")

    def freeze(self, pid: int) -> list[int]:
        self.log.append("stopped")
        self.runs = False
        return []

    def require_rest(self) -> None:
        if self.woken:
            raise Fault("CHEATED", "it went on")

    def release(self, pid: int, strays: list[int]) -> None:
        self.log.append("released")
        self.runs = True

    def workload(self, case: Any, outputs: Any) -> None:
        assert case is CASE

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        if op == "drain":
            self.log.append("drained")
            return {}
        assert op == "hold"
        return checked(op, {"op": op, "inputs": [described(b) for b in self.held.buffers]})

    def begin(self, op: str, alone: bool, ticket: int, known: int | None, tells: bool) -> None:
        assert not self.waiting, "the call before has never gone"
        self.made, self.tells, self.alone = torch.zeros_like(self.held.args[0]), tells, alone
        self.waiting = {ticket: known is None}
        if self.queues:
            self._theirs.send(b"x")

    def answer(self, op: str) -> dict[str, Any]:
        assert self.queues or not self.waiting, "it would never come"
        self.answered += 1
        if self.queues:
            self.channel.recv(1)
        return checked(op, {"op": op, "outputs": [lying(self.made)]})

    def _work(self) -> None:
        for ticket in [t for t in self.waiting if t <= self.words[GO_AT] and (self.ends or self.runs)]:
            if self.waiting[ticket]:
                self.waiting[ticket] = False
                self.made.copy_(self.works(self.held.args[0]))
            if self.tells or ticket < self.words[GO_AT]:
                del self.waiting[ticket]
                self.words[DONE_AT] = ticket


class Clock:
    """An eviction, which takes what is said, or a microsecond more each time."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.us = log, 60.0

    def clear(self, before: Callable[[], None], after: Callable[[], None]) -> Callable[[], float]:
        before()
        self.log.append("evicted")
        after()
        self.us += 1.0
        return lambda: self.us

    def touch(self) -> None:
        self.log.append("touched")

    def wait(self) -> None:
        self.log.append("waited")


class Own:
    """The harness's words, which no runner can write."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory

    def write(self, at: int, ticket: int) -> None:
        self.memory[at : at + 4] = ticket.to_bytes(4, sys.byteorder)

    def wait(self, at: int, ticket: int) -> None:
        """The harness lets go of the device; nothing waits here."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Process]]:
    for module in (gates, passage):
        monkeypatch.setattr(module, "QUEUED_S", 0.0)
    monkeypatch.setattr(passage, "_FIRST_QUEUED_S", 0.0)
    monkeypatch.setattr(gates, "_WAITS_S", 0.0)
    monkeypatch.setattr(passage, "_MOST_S", 0.0)
    monkeypatch.setattr(passage, "_AWAY_US", 0.0)
    monkeypatch.setattr(passage, "_KEPT_US", 0.0)
    monkeypatch.setattr(words, "Stream", lambda memory, start=GO_AT: memory if start else Own(memory))
    processes: list[Process] = []

    def make(works: Callable[[torch.Tensor], torch.Tensor] = torch.exp, **how: bool) -> Process:
        processes.append(Process(works, **how))
        return processes[-1]

    yield make
    for one in processes:
        one.close()


def opened(
    process: Process, device: Device, mutates: tuple[int, ...] = (), call_us: float = 0.0, own_us: float = 0.0
) -> Gate:
    problem: Any = dataclasses.replace(PROBLEM, mutates=mutates)
    line: Any = Line(process)  # type: ignore[arg-type]
    return Gate(line, device, problem, CASE, OUTPUTS, Clock(process.log), call_us, own_us, device="cpu")


WENT = ["evicted", "go", "touched"]


def expected(seed: int) -> torch.Tensor:
    return torch.exp(draw(CASE.inputs, CASE.literals, seed, "cpu").args[0])


def test_a_call_gets_its_values_while_its_process_is_stopped(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    gate = opened(process, device)
    process.log.clear()
    passed = gate.through(Values(11), True)
    assert passed is not None
    assert torch.equal(passed.outputs[0], expected(11))
    assert process.log == ["stopped", *WENT, "released", "drained"]
    assert passed.went.us > 0
    assert passed.went.cleared_us == 61.0
    again = gate.through(Values(12), True)
    assert again is not None
    assert torch.equal(again.outputs[0], expected(12))
    gate.close()
    assert device.mapped == 0, "what was mapped was given back"


def test_a_call_of_our_own_passes_before_there_is_a_candidate(made: Callable[..., Process]) -> None:
    def works(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no candidate's is to be called")

    process = made(works)
    own = Passage(Line(process), Clock(process.log), candidate=False)  # type: ignore[arg-type]
    process.log.clear()
    assert own.known(2) is not None
    assert (process.log, process.alone) == (WENT, False), "there is nobody to be stopped"
    process.queues = False
    with pytest.raises(Fault, match="does not queue a call that is not its candidate's"):
        own.known(0)
    assert process.answered == 2, "nothing is left to be taken for the answer to something else"


def test_where_the_device_is_never_away_before_there_is_a_candidate_nothing_is_known(
    made: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Passage(Line(made()), Clock([]), candidate=False)  # type: ignore[arg-type]
    monkeypatch.setattr(passage, "_KEPT_US", 1e9)
    assert [own.known(0) for _ in range(12)] == [None] * 12
    with pytest.raises(NotShared):
        own.known(0)


def test_a_call_of_our_own_that_is_never_seen_to_be_over_is_given_up() -> None:
    tries = iter(range(1000))
    with pytest.raises(NotShared):
        at_last(lambda: None if next(tries) >= 0 else Went(0.0, 0.0))
    assert next(tries) == 30
    assert at_last(lambda: Went(1.0, 2.0)).us == 1.0


def test_a_line_that_cannot_be_had_leaves_nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    open_now: list[str] = []

    class Own:
        def __init__(self, memory: Any, start: int = GO_AT) -> None:
            if start:
                raise OSError(712, "already registered")
            open_now.append("moments")

        def close(self) -> None:
            open_now.remove("moments")

    monkeypatch.setattr(words, "Stream", Own)
    process = Process(torch.exp)
    with pytest.raises(OSError, match="already registered"):
        Line(process)  # type: ignore[arg-type]
    assert open_now == []
    process.close()


def test_a_call_of_our_own_passes_between_a_candidates_while_its_process_is_stopped(
    made: Callable[..., Process],
) -> None:
    process = made()
    gate = opened(process, Device())
    process.log.clear()
    assert gate.known(1) is not None
    assert (process.log, process.alone) == (["stopped", *WENT, "released"], True)


def test_a_device_that_was_never_away_tells_no_time_and_after_some_of_these_calls_say_themselves_that_they_are_over(
    made: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = made()
    gate = opened(process, Device())
    monkeypatch.setattr(passage, "_KEPT_US", 1e9)
    assert [gate.through(Values(seed), True) for seed in range(13)] == [None] * 13
    process.log.clear()
    passed = gate.through(Values(13), True)
    assert passed is not None
    assert torch.equal(passed.outputs[0], expected(13))
    assert process.log == ["stopped", "evicted", "go", "over", "touched", "released", "drained"]


def test_a_device_that_rests_before_a_call_can_be_over_had_changed_hands_and_the_call_says_then_when_it_is(
    made: Callable[..., Process],
) -> None:
    process = made()
    gate = opened(process, Device(), own_us=1e9)
    assert gate.known(0) is not None, "one of our own may"
    assert [gate.through(Values(seed), True) for seed in range(13)] == [None] * 13
    process.log.clear()
    assert gate.through(Values(13), True) is not None
    assert "over" in process.log


def test_a_harness_that_waits_for_the_device_while_it_queues_gets_it_back_and_tells_no_time(
    made: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = opened(made(), Device())
    monkeypatch.setattr(passage, "_HUNG_S", 0.0)
    back = threading.Event()
    monkeypatch.setattr(gate._passage._line, "want_back", lambda ticket: back.set())
    touch = gate._clock.touch
    monkeypatch.setattr(gate._clock, "touch", lambda: (back.wait(5.0), touch()))
    assert [gate.through(Values(seed), True) for seed in range(25)] == [None] * 25
    with pytest.raises(NotShared):
        gate.through(Values(25), True)


def test_a_process_that_makes_room_for_smaller_inputs_is_not_given_any(made: Callable[..., Process]) -> None:
    class Short(Process):
        def ask(self, op: str, **fields: Any) -> dict[str, Any]:
            reply = super().ask(op, **fields)
            return {"inputs": [described(b[:-64]) for b in self.held.buffers]} if op == "hold" else reply

    process = Short(torch.exp)
    gate = opened(process, Device())
    before = process.held.buffers[0].clone()
    with pytest.raises(Fault, match="described inputs of another size") as caught:
        gate.through(Values(1), True)
    assert caught.value.status == "CHEATED"
    assert torch.equal(process.held.buffers[0], before), "no value has got there"
    assert process.runs
    process.close()


@pytest.mark.parametrize("at", [None, (0, 0), (2, 4)])
def test_inputs_that_are_no_whole_number_of_words_are_compared_to_their_last_byte(
    made: Callable[..., Process], monkeypatch: pytest.MonkeyPatch, at: tuple[int, int] | None
) -> None:
    odd = PROBLEM.case(Workload({"rows": 3, "cols": 5}))
    monkeypatch.setitem(globals(), "CASE", odd)

    def works(x: torch.Tensor) -> torch.Tensor:
        out = torch.exp(x)
        if at is not None:
            x[at] += 1
        return out

    process = made(works)
    assert process.held.buffers[0].numel() % 8 == 4
    gate = opened(process, Device())
    if at is None:
        passed = gate.through(Values(11), True)
        assert passed is not None
        assert torch.equal(passed.outputs[0], expected(11))
        return
    with pytest.raises(Fault, match="a timed call changed its input 0"):
        gate.through(Values(11), True)


def test_a_call_as_long_as_a_time_slice_says_itself_that_it_is_over(made: Callable[..., Process]) -> None:
    process = made()
    gate = opened(process, Device(), call_us=3000.0)
    process.log.clear()
    assert gate.through(Values(1), False) is not None
    assert process.log == ["stopped", "evicted", "go", "over", "touched", "released", "drained"]


def test_what_was_copied_is_not_what_comes_later(made: Callable[..., Process]) -> None:
    gate = opened(made(), Device())
    passed = gate.through(Values(11), True)
    gate.through(Values(12), True)
    assert passed is not None
    assert torch.equal(passed.outputs[0], expected(11))


def test_outputs_that_are_not_looked_at_are_not_handed_on(made: Callable[..., Process]) -> None:
    passed = opened(made(), Device()).through(Values(1), False)
    assert passed is not None
    assert passed.outputs == []


def test_an_input_that_is_no_longer_what_it_was_is_told_even_if_nobody_looks(made: Callable[..., Process]) -> None:
    def works(x: torch.Tensor) -> torch.Tensor:
        out = torch.exp(x)
        x[0, 0] += 1
        return out

    with pytest.raises(Fault, match="a timed call changed its input 0") as caught:
        opened(made(works), Device()).through(Values(1), False)
    assert caught.value.status == "INCORRECT_NUMERICAL"


def test_outputs_that_are_other_addresses_of_an_input_are_read_spoilt(made: Callable[..., Process]) -> None:
    class Alias(Process):
        def answer(self, op: str) -> dict[str, Any]:
            super().answer(op)
            return {"outputs": [lying(self.held.args[0])]}

    process = Alias(torch.exp)
    passed = opened(process, Device()).through(Values(11), True)
    assert passed is not None
    assert not torch.equal(passed.outputs[0], draw(CASE.inputs, CASE.literals, 11, "cpu").args[0])
    assert torch.equal(process.held.args[0], draw(CASE.inputs, CASE.literals, 11, "cpu").args[0]), (
        "and made whole again"
    )
    process.close()


def test_a_call_that_waits_for_the_device_goes_beside_its_process_and_is_over_when_it_has_answered(
    made: Callable[..., Process],
) -> None:
    process, device = made(), Device()
    gate = opened(process, device)
    process.queues = False
    process.log.clear()
    assert gate.through(Values(11), True) is None, "another seed is needed: its process has gone on and seen this one"
    assert process.log == ["drained"]
    process.log.clear()
    passed = gate.through(Values(12), True)
    assert passed is not None
    assert torch.equal(passed.outputs[0], expected(12))
    assert process.log == [*WENT, "waited", "drained"]


@pytest.mark.parametrize("call_us", [0.0, 3000.0])
def test_a_call_that_needs_its_process_goes_beside_it_too(made: Callable[..., Process], call_us: float) -> None:
    process, device = made(), Device()
    gate = opened(process, device, call_us=call_us)
    process.ends = False
    process.log.clear()
    assert gate.through(Values(11), True) is None
    assert ("helped" in process.log) == bool(call_us), "the harness's own stream does not wait for ever"
    passed = gate.through(Values(13), True)
    assert passed is not None
    assert torch.equal(passed.outputs[0], expected(13))
    assert process.log.count("stopped") == 1


def test_a_call_that_is_never_over_is_suspect(made: Callable[..., Process]) -> None:
    class Endless(Process):
        def _work(self) -> None:
            super()._work()
            self.words[DONE_AT] = min(self.words[DONE_AT], 1)

    process = Endless(torch.exp)
    gate = opened(process, Device())
    assert gate.through(Values(1), False) is None
    with pytest.raises(Fault, match="take far longer than is claimed") as caught:
        gate.through(Values(2), False)
    assert caught.value.status == "SUSPECT"
    assert process.runs
    process.close()


def test_inputs_that_a_call_changes_are_read_from_where_they_lie(made: Callable[..., Process]) -> None:
    def works(x: torch.Tensor) -> torch.Tensor:
        out = torch.exp(x)
        x.fill_(7.0)
        return out

    passed = opened(made(works), Device(), mutates=(0,)).through(Values(12), True)
    assert passed is not None
    assert torch.equal(passed.outputs[0], torch.full_like(passed.outputs[1], 7.0))
    assert torch.equal(passed.outputs[1], expected(12))


def test_all_gates_of_a_process_go_on_counting(made: Callable[..., Process]) -> None:
    process = made()
    line: Any = Line(process)  # type: ignore[arg-type]
    assert (process.words[GO_AT], process.words[DONE_AT]) == (0, 0), "whatever stood there"
    for seed in (1, 2):
        with Gate(line, Device(), PROBLEM, CASE, OUTPUTS, Clock(process.log), device="cpu") as gate:
            before = process.words[GO_AT]
            gate.through(Values(seed), False)
            assert process.words[GO_AT] == before + 2


def test_an_output_without_elements_needs_no_memory(made: Callable[..., Process]) -> None:
    class Empty(Process):
        def answer(self, op: str) -> dict[str, Any]:
            super().answer(op)
            return {"outputs": [{"bytes": 0, "lies": {"shape": [0, 3], "strides": [3, 1], "dtype": "float32"}}]}

    process = Empty(torch.exp)
    passed = opened(process, Device()).through(Values(1), True)
    assert passed is not None
    assert [list(out.shape) for out in passed.outputs] == [[0, 3]]
    process.close()


def test_an_output_that_is_no_row_of_bytes_is_a_lie(made: Callable[..., Process]) -> None:
    class Odd(Process):
        def answer(self, op: str) -> dict[str, Any]:
            super().answer(op)
            return {"outputs": [described(self.made)]}

    process = Odd(torch.exp)
    with pytest.raises(Fault, match="that is none") as caught:
        opened(process, Device()).through(Values(1), True)
    assert caught.value.status == "CHEATED"
    assert process.runs
    process.close()


def test_memory_that_cannot_be_reached_is_no_trick(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    device.refuses = True
    with pytest.raises(Fault, match="cannot be reached: no such handle") as caught:
        opened(process, device)
    assert caught.value.status == "RUNTIME_ERROR"


def test_memory_that_cannot_be_shared_is_said_so(made: Callable[..., Process]) -> None:
    class Inputs(Process):
        def ask(self, op: str, **fields: Any) -> dict[str, Any]:
            return {"inputs": None}

    class Outputs(Process):
        def answer(self, op: str) -> dict[str, Any]:
            super().answer(op)
            return {"outputs": None}

    for kind in (Inputs, Outputs):
        process, device = kind(torch.exp), Device()
        with pytest.raises(NotShared):
            opened(process, device)
        assert device.mapped == 0
        process.close()


def test_a_description_that_is_none_is_a_lie(made: Callable[..., Process]) -> None:
    class Odd(Process):
        def ask(self, op: str, **fields: Any) -> dict[str, Any]:
            return {"inputs": ["nothing"]}

    process = Odd(torch.exp)
    with pytest.raises(Fault, match="that is none") as caught:
        opened(process, Device())
    assert caught.value.status == "CHEATED"
    process.close()


def test_inputs_beyond_the_end_of_their_memory_are_a_lie(made: Callable[..., Process]) -> None:
    process = made()

    class Small(Device):
        def open(self, handle: bytes) -> tuple[int, int]:
            return super().open(handle)[0], 8

    device = Small()
    with pytest.raises(Fault, match="beyond its end") as caught:
        opened(process, device)
    assert caught.value.status == "CHEATED"


class Queue:
    """A stream, on which nothing waits."""

    def __init__(self, shared: mmap.mmap) -> None:
        self.log: list[tuple[str, int, int]] = []

    def wait(self, at: int, ticket: int) -> None:
        self.log.append(("wait", at, ticket))

    def wait_beside(self, at: int, ticket: int) -> None:
        self.log.append(("wait beside", at, ticket))

    def write(self, at: int, ticket: int) -> None:
        self.log.append(("write", at, ticket))


@pytest.mark.parametrize("made_by", [lambda x: 2 * x, lambda x: (2 * x).t(), lambda x: (2 * x)[:, :3]])
def test_a_runner_queues_a_call_behind_a_word_and_says_where_the_outputs_lie(
    monkeypatch: pytest.MonkeyPatch, made_by: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    device = Device()
    monkeypatch.setattr(runner_side, "Stream", Queue)
    monkeypatch.setattr(runner_side, "on_device", SimpleNamespace(CudaDriver=lambda: device, named=named))
    with mmap.mmap(-1, 1 << 12) as shared:
        one = Candidate("cpu", 1 << 12, shared)
        called: list[torch.Tensor] = []
        touched: list[int] = []
        one._gate = Queue(shared)  # type: ignore[assignment]
        one._made_clock = SimpleNamespace(known=touched.append)  # type: ignore[assignment]
        one._function = lambda x: called.append(x) or made_by(x)  # type: ignore[func-returns-value]
        spec = {"kind": "normal", "shape": [3, 5], "dtype": "float32", "args": {"scale": 1.0, "shift": 0.0}}
        one.workload({"inputs": [{"spec": spec}], "params": {}, "outputs": [], "literals": []})
        assert len(one.hold({"distribution": "normal", "layout": "contiguous"})["inputs"]) == 1
        assert one.enqueue({"ticket": 5, "known": 2, "tells": True})["outputs"] == []
        assert (touched, called) == ([2], [])
        assert one._gate.log == [("wait beside", GO_AT, 5), ("wait", GO_AT, 5), ("write", DONE_AT, 5)]
        told = one.enqueue({"ticket": 7, "known": None, "tells": False})["outputs"]
        assert one._gate.log[4:] == [("wait", GO_AT, 7), ("wait", GO_AT, 8), ("write", DONE_AT, 7)]
        assert touched == [2]
        gate = object.__new__(Gate)
        gate._driver, gate._maps = device, {}
        place = gate._place(told[0])
        assert torch.equal(rebuilt([place.memory.clone()], [place.lies])[0], made_by(called[0]))


def named(driver: Device, tensor: torch.Tensor) -> dict[str, Any]:
    driver.handle(tensor.data_ptr())
    return described(tensor)


class Private(Device):
    """A driver of memory that no other process can be given."""

    def handle(self, address: int) -> tuple[bytes, int]:
        raise OSError(1, "cuIpcGetMemHandle failed with CUDA error 1")


@pytest.mark.parametrize(
    ("device", "told"),
    [
        (Private(), None),
        (Device(), [{"bytes": 0, "lies": {"shape": [0, 5], "strides": [5, 1], "dtype": "float32"}}]),
    ],
)
def test_a_runner_says_where_no_memory_can_be_shared_and_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, device: Device, told: Any
) -> None:
    monkeypatch.setattr(runner_side, "on_device", SimpleNamespace(CudaDriver=lambda: device, named=named))
    with mmap.mmap(-1, 1 << 12) as shared:
        one = Candidate("cpu", 1 << 12, shared)
        one._gate = Queue(shared)  # type: ignore[assignment]
        one._made_clock = SimpleNamespace()  # type: ignore[assignment]
        one._function = lambda x: 2 * x if told is None else (2 * x)[:0]
        spec = {"kind": "normal", "shape": [3, 5], "dtype": "float32", "args": {"scale": 1.0, "shift": 0.0}}
        one.workload({"inputs": [{"spec": spec}], "params": {}, "outputs": [], "literals": []})
        held = one.hold({"distribution": "normal", "layout": "contiguous"})
        assert (held["inputs"] is None) == (told is None)
        reply = one.enqueue({"ticket": 5, "known": None, "tells": True})
    assert reply["outputs"] == told
    assert checked("enqueue", {"op": "enqueue", **reply}), "which is an answer that the harness takes"


class Library:
    """CUDA's driver, as far as a stream needs it."""

    def __init__(self, pointer: int = 0, operation: int = 0) -> None:
        self._codes = pointer, operation
        self.calls: list[tuple[str, int, int]] = []

    def cuMemHostGetDevicePointer_v2(self, there: Any, here: Any, flags: Any) -> int:
        there._obj.value = 1 << 40
        return self._codes[0]

    def cuStreamWaitValue32_v2(self, stream: Any, address: Any, value: Any, flags: Any) -> int:
        self.calls.append(("wait", address.value, value.value))
        return self._codes[1]

    def cuStreamWriteValue32_v2(self, stream: Any, address: Any, value: Any, flags: Any) -> int:
        self.calls.append(("write", address.value, value.value))
        return self._codes[1]


def stream(patch: pytest.MonkeyPatch, library: Library, registered: int = 0) -> queueing.Stream:
    patch.setattr(queueing.ctypes, "CDLL", lambda name: library)
    patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return queueing.Stream(mmap.mmap(-1, 1 << 12), 0, lambda address, size: registered)


def test_a_stream_waits_for_one_word_and_writes_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    made = stream(monkeypatch, library)
    made.wait(0, 7)
    made.write(128, 9)
    assert library.calls == [("wait", 1 << 40, 7), ("write", (1 << 40) + 128, 9)]


@pytest.mark.parametrize(
    ("library", "registered", "words"),
    [
        (Library(), 801, "cudaHostRegister failed with CUDA error 801"),
        (Library(pointer=1), 0, "cuMemHostGetDevicePointer_v2 failed with CUDA error 1"),
        (Library(operation=801), 0, "cuStreamWaitValue32_v2 failed with CUDA error 801"),
    ],
)
def test_a_device_that_cannot_see_the_hosts_memory_or_wait_for_it_says_so(
    monkeypatch: pytest.MonkeyPatch, library: Library, registered: int, words: str
) -> None:
    with pytest.raises(OSError, match=words):
        stream(monkeypatch, library, registered).wait(0, 1)
