"""Calls between two moments that the harness knows, with a process and a driver that stand for the device."""

import ctypes
import dataclasses
import mmap
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from evaluating import PROBLEMS

from kopt_mcp.evaluator import candidate as runner_side
from kopt_mcp.evaluator import gate as gates
from kopt_mcp.evaluator import queueing
from kopt_mcp.evaluator.answers import checked
from kopt_mcp.evaluator.candidate import Candidate
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.gate import Clearing, Gate, Line, NotShared, Passed, Values
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.inputs import Guarded, draw
from kopt_mcp.evaluator.queueing import DONE_AT, EMPTY, GO_AT, REST_AT
from kopt_mcp.problem import Problem

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
        self.pid, self.words = 1, {GO_AT: 5, DONE_AT: 0, REST_AT: 0}
        self.shared = self.runner = self.turn = self.memory = self  # type: Any
        self.channel, self._theirs = socket.socketpair()
        self.held: list[Guarded] = []
        self.waiting: dict[int, tuple[Guarded, torch.Tensor] | None] = {}
        self.made: list[torch.Tensor] = []
        self.log: list[str] = []
        self.runs = True

    def close(self) -> None:
        self.channel.close()
        self._theirs.close()

    def peek(self, at: int) -> int:
        return self.words[at]

    def poke(self, at: int, value: int) -> None:
        self.words[at] = value
        self.log += ["helped"] if at == DONE_AT and self.waiting and min(self.waiting) <= value else []
        self._work()

    def write(self, at: int, ticket: int) -> None:
        self.log += ["go"] if at == GO_AT else []
        self.poke(at, ticket)

    def wait(self, at: int, ticket: int) -> None:
        self.log.append("over" if self.words[at] == ticket else "waits")

    def halt(self, pid: int) -> None:
        self.log.append("stopped")
        self.runs = False

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
        self.held = [draw(CASE.inputs, CASE.literals, 9, "cpu") for _ in range(fields["count"])]
        return checked(op, {"inputs": [[described(b) for b in inputs.buffers] for inputs in self.held]})

    def begin(self, op: str, ticket: int, count: int) -> None:
        self.made = [torch.zeros_like(inputs.args[0]) for inputs in self.held[:count]]
        self._wait(ticket, self.made)
        if self.queues:
            self._theirs.send(b"x")

    def answer(self, op: str) -> dict[str, Any]:
        assert all(ticket <= self.words[GO_AT] for ticket in self.waiting) or self.queues, "it would never come"
        if self.queues:
            self.channel.recv(1)
        return checked(op, {"outputs": [[lying(out)] for out in self.made]})

    def _wait(self, ticket: int, made: list[torch.Tensor]) -> None:
        self.waiting = dict.fromkeys(range(ticket, ticket + EMPTY))
        self.waiting |= {ticket + EMPTY + n: (self.held[n], out) for n, out in enumerate(made)}
        self._work()

    def _work(self) -> None:
        for ticket in sorted(t for t in self.waiting if t <= self.words[GO_AT] and (self.ends or self.runs)):
            if (call := self.waiting.pop(ticket)) is not None:
                call[1].copy_(self.works(call[0].args[0]))
            self.words[DONE_AT] = ticket


class Quiet:
    """An eviction, on a device that rests but for the times that are said."""

    def __init__(self, log: list[str], rests: Callable[[], bool] = lambda: True) -> None:
        self.log, self.rests = log, rests

    def __call__(self, before: Callable[[], None], after: Callable[[], None]) -> Callable[[], bool]:
        before()
        self.log.append("evicted")
        after()
        return self.rests

    def touch(self) -> None:
        self.log.append("touched")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Process]]:
    monkeypatch.setattr(gates, "_QUEUED_S", 0.0)
    monkeypatch.setattr(gates, "_MOST_S", 0.0)
    monkeypatch.setattr(gates, "Stream", lambda memory: SimpleNamespace(write=memory.write, wait=memory.wait))
    processes: list[Process] = []

    def make(works: Callable[[torch.Tensor], torch.Tensor] = torch.exp, **how: bool) -> Process:
        processes.append(Process(works, **how))
        return processes[-1]

    yield make
    for one in processes:
        one.close()


def opened(process: Process, device: Device, count: int = 3, mutates: tuple[int, ...] = (), **how: Any) -> Gate:
    problem: Any = dataclasses.replace(PROBLEM, mutates=mutates)
    quiet: Any = Quiet(process.log, **how)
    return Gate(Line(process), device, problem, CASE, OUTPUTS, count, quiet, device="cpu")  # type: ignore[arg-type]


def expected(seed: int) -> torch.Tensor:
    return torch.exp(draw(CASE.inputs, CASE.literals, seed, "cpu").args[0])


WENT = ["evicted", "go", "over", "touched"]


def outputs(passed: list[Passed] | None) -> list[torch.Tensor]:
    assert passed is not None
    return [one.outputs[0] for one in passed]


def on(*seeds: int) -> list[Values]:
    return [Values(seed) for seed in seeds]


def test_calls_get_their_values_one_by_one_while_their_process_is_stopped(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    gate = opened(process, device)
    process.log.clear()
    passed = gate.through(on(11, 12, 13), True)
    assert [torch.equal(out, expected(seed)) for out, seed in zip(outputs(passed), (11, 12, 13), strict=True)] == [
        True
    ] * 3
    assert process.log == ["stopped", *WENT * (EMPTY + 3), "released", "drained"]
    assert passed is not None
    assert all(0 < one.went.us <= one.went.all_us and one.went.quiet for one in passed)
    assert torch.equal(outputs(gate.through(on(21, 22, 21), True))[2], expected(21))
    gate.close()
    assert device.mapped == 0, "what was mapped was given back"


def test_a_call_gets_the_values_of_the_distribution_that_is_asked_for(made: Callable[..., Process]) -> None:
    passed = opened(made(lambda x: x.clone()), Device()).through([Values(11), Values(11, "shifted")], True)
    ordinary, shifted = outputs(passed)
    assert torch.equal(shifted, draw(CASE.inputs, CASE.literals, 11, "cpu", "shifted").args[0])
    assert not torch.equal(shifted, ordinary)


def test_outputs_that_are_not_looked_at_are_not_read(made: Callable[..., Process]) -> None:
    gate = opened(made(), Device())
    assert [one.outputs for one in gate.through(on(1, 2, 3), False) or []] == [[], [], []]


def test_calls_that_wait_for_the_device_go_alone_beside_their_process(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    gate = opened(process, device)
    process.queues = False
    process.log.clear()
    assert torch.equal(outputs(gate.through(on(11, 12, 13), True))[1], expected(12))
    alone = [*WENT * (EMPTY + 1), "drained"]
    assert process.log == ["drained", *alone * 3]
    process.log.clear()
    gate.through(on(1, 2), False)
    assert process.log == alone * 2, "it is known by now"


def test_calls_behind_which_others_keep_the_device_busy_go_alone(
    made: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, device = made(), Device()
    gate = opened(process, device)
    monkeypatch.setattr(gates, "_REST_US", -1.0)
    process.log.clear()
    assert torch.equal(outputs(gate.through(on(11, 12, 13), True))[1], expected(12))
    assert process.log.count("stopped") == 1 + 3, "together first, then each by itself, its process stopped"
    process.log.clear()
    gate.through(on(1, 2), False)
    assert process.log.count("stopped") == 2


def test_calls_that_need_their_process_go_alone_too(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    gate = opened(process, device)
    process.ends = False
    process.log.clear()
    assert torch.equal(outputs(gate.through(on(11, 12, 13), True))[2], expected(13))
    assert process.log.count("stopped") == 1


def test_calls_that_are_never_over_are_told(made: Callable[..., Process]) -> None:
    class Endless(Process):
        def _work(self) -> None:
            if self.words[GO_AT] < 5 + (EMPTY + 3) + EMPTY + 2:
                super()._work()

    process = Endless(torch.exp)
    gate = opened(process, Device())
    assert gate.through(on(1, 2, 3), False) is None
    assert process.runs
    assert "helped" in process.log, "the harness's own stream does not wait for ever"
    process.close()


def test_a_call_beside_which_the_device_did_something_else_says_so(made: Callable[..., Process]) -> None:
    rests = iter([True, False, True, True, False, True])
    gate = opened(made(), Device(), rests=lambda: next(rests))
    passed = gate.through(on(1, 2, 3), False)
    assert [one.went.quiet for one in passed or []] == [True, False, True]
    assert len(gate._line.empty) == EMPTY - 1


def test_inputs_that_a_call_changes_are_read_from_where_they_lie(made: Callable[..., Process]) -> None:
    def works(x: torch.Tensor) -> torch.Tensor:
        out = torch.exp(x)
        x.fill_(7.0)
        return out

    gate = opened(made(works), Device(), mutates=(0,))
    passed = gate.through(on(11, 12, 13), True)
    assert passed is not None
    assert all(torch.equal(one.outputs[0], torch.full_like(one.outputs[1], 7.0)) for one in passed)
    assert torch.equal(passed[1].outputs[1], expected(12))


def test_a_second_gate_before_one_process_is_shut_too(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    for seeds in ([1, 2, 3], [4, 5, 6]):
        with opened(process, device) as gate:
            go = process.words[GO_AT]
            gate.through(on(*seeds), False)
            assert process.words[GO_AT] == go + EMPTY + 3, (
                "a word that holds a later number would let calls through at once"
            )


def test_outputs_that_calls_share_are_read_before_the_next_one_goes(made: Callable[..., Process]) -> None:
    class OneBuffer(Process):
        def begin(self, op: str, ticket: int, count: int) -> None:
            super().begin(op, ticket, 0)
            self.made = [torch.zeros_like(self.held[0].args[0])] * count
            self._wait(ticket, self.made)

    process = OneBuffer(torch.exp)
    found = outputs(opened(process, Device()).through(on(11, 12, 13), True))
    assert [torch.equal(out, expected(seed)) for out, seed in zip(found, (11, 12, 13), strict=True)] == [True] * 3
    process.close()


def test_other_calls_than_were_asked_for_are_a_lie(made: Callable[..., Process]) -> None:
    class Fewer(Process):
        def answer(self, op: str) -> dict[str, Any]:
            return {"outputs": super().answer(op)["outputs"][1:]}

    process = Fewer(torch.exp)
    with pytest.raises(Fault, match="queued other calls") as caught:
        opened(process, Device())
    assert caught.value.status == "CHEATED"
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
            return {"inputs": []}

    class Outputs(Process):
        def answer(self, op: str) -> dict[str, Any]:
            return {"outputs": []}

    for kind in (Inputs, Outputs):
        process, device = kind(torch.exp), Device()
        with pytest.raises(NotShared):
            opened(process, device)
        assert device.mapped == 0
        process.close()


def test_a_description_that_is_none_is_a_lie(made: Callable[..., Process]) -> None:
    class Odd(Process):
        def ask(self, op: str, **fields: Any) -> dict[str, Any]:
            return {"inputs": [["nothing"]]}

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
    with pytest.raises(Fault, match="beyond the end of its memory") as caught:
        opened(process, device)
    assert caught.value.status == "CHEATED"


class Evictions:
    """A clock whose evictions take these microseconds, and the last of them for ever."""

    def __init__(self, *us: float) -> None:
        self.us = list(us)
        self.log: list[str] = []

    def clear(self, before: Callable[[], None], after: Callable[[], None]) -> Callable[[], float]:
        before()
        after()
        us = self.us.pop(0) if len(self.us) > 1 else self.us[0]
        return lambda: us

    def touch(self) -> None:
        self.log.append("touched")


def test_an_eviction_that_takes_longer_than_at_best_tells_of_other_work() -> None:
    def clear() -> bool:
        return clearing(lambda: clock.log.append("values"), lambda: clock.log.append("go"))()

    clock = Evictions(62.0, 60.0, 61.0, 60.0, 65.0, 64.0, 90.0, 70.0, 50.0, 61.0)
    clearing = Clearing(clock)
    assert [clear() for _ in range(5)] == [True, False, True, True, False], "noise is none, and the least is learnt"
    assert clock.log == ["values", "go"] * 5
    clearing.touch()
    assert clock.log[-1] == "touched"
    busy = Clearing(Evictions(*[60.0] * 5, 500.0))
    assert [busy(_nothing, _nothing)() for _ in range(50)] == [False] * 50
    with pytest.raises(Fault, match="works while nothing of this evaluation should") as caught:
        busy(_nothing, _nothing)()
    assert caught.value.status == "DEVICE_BUSY"


def _nothing() -> None:
    return


class Queue:
    """A stream, on which nothing waits."""

    def __init__(self, shared: mmap.mmap) -> None:
        self.log: list[tuple[str, int, int]] = []

    def wait(self, at: int, ticket: int) -> None:
        self.log.append(("wait", at, ticket))

    def write(self, at: int, ticket: int) -> None:
        self.log.append(("write", at, ticket))


@pytest.mark.parametrize("made_by", [lambda x: 2 * x, lambda x: (2 * x).t(), lambda x: (2 * x)[:, :3]])
def test_a_runner_queues_each_call_between_two_words_and_says_where_the_outputs_lie(
    monkeypatch: pytest.MonkeyPatch, made_by: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    device = Device()
    monkeypatch.setattr(runner_side, "Stream", Queue)
    monkeypatch.setattr(runner_side, "on_device", SimpleNamespace(CudaDriver=lambda: device, named=named))
    with mmap.mmap(-1, 1 << 12) as shared:
        one = Candidate("cpu", 1 << 12, shared)
        called: list[torch.Tensor] = []
        touched: list[int] = []
        one._made_clock = SimpleNamespace(touch=lambda: touched.append(1))  # type: ignore[assignment]
        one._function = lambda x: called.append(x) or made_by(x)  # type: ignore[func-returns-value]
        spec = {"kind": "normal", "shape": [3, 5], "dtype": "float32", "args": {"scale": 1.0, "shift": 0.0}}
        one.workload({"inputs": [{"spec": spec}], "params": {}, "outputs": [], "literals": []})
        held = checked("hold", one.hold({"count": 3, "distribution": "normal", "layout": "contiguous"}))["inputs"]
        assert [len(call) for call in held] == [1, 1, 1]
        told = checked("enqueue", one.enqueue({"ticket": 7, "count": 2}))["outputs"]
        assert one._gate.log == [
            (*word, 7 + n) for n in range(EMPTY + 2) for word in (("wait", GO_AT), ("write", DONE_AT))
        ]
        assert touched == [1] * EMPTY
        gate = object.__new__(Gate)
        gate._driver, gate._maps = device, {}
        for x, call in zip(called, told, strict=True):
            assert torch.equal(gate._output(call[0]), made_by(x))


def named(_: Device, tensor: torch.Tensor) -> dict[str, Any]:
    return described(tensor)


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
    patch.setattr(queueing, "GO_AT", 0)
    patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return queueing.Stream(mmap.mmap(-1, 1 << 12), lambda address, size: registered)


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
