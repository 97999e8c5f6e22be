"""Calls between two moments that the harness knows, with a process and a driver that stand for the device."""

import ctypes
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
from kopt_mcp.evaluator.candidate import Candidate
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.gate import Gate, Sweep
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.inputs import Guarded, draw
from kopt_mcp.evaluator.queueing import DONE_AT, GO_AT
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

    def copy(self, address: int, size: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=torch.uint8)

    def write(self, address: int, data: torch.Tensor) -> None:
        ctypes.memmove(address, data.data_ptr(), data.numel() * data.element_size())

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
    """A runner that has its calls made by `works` once the word to go on is set, and says so where it is honest."""

    def __init__(self, works: Callable[[torch.Tensor], torch.Tensor], queues: bool = True, ends: bool = True) -> None:
        self.works, self.queues, self.ends = works, queues, ends
        self.pid, self.words = 1, {GO_AT: 5, DONE_AT: 0}
        self.shared: Any = self
        self.runner: Any = self
        self.turn: Any = self
        self.channel, self._theirs = socket.socketpair()
        self.held: list[Guarded] = []
        self.made: list[torch.Tensor] = []
        self.log: list[str] = []
        self.last = 0

    def close(self) -> None:
        self.channel.close()
        self._theirs.close()

    def peek(self, at: int) -> int:
        return self.words[at]

    def poke(self, at: int, value: int) -> None:
        self.log.append("go")
        self.words[at] = value
        if self.made and self.ends:
            self._work()

    def take_turn(self) -> None:
        self.log.append("turn")

    def halt(self, pid: int) -> None:
        self.log.append("stopped")

    def release(self, pid: int, strays: list[int]) -> None:
        self.log.append("released")

    def workload(self, case: Any, outputs: Any) -> None:
        assert case is CASE

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        if op == "tell":
            self.last = fields["value"]
            if self.words[GO_AT] >= self.ticket:
                self._work()
            return {}
        if op == "drain":
            self.log.append("drained")
            return {}
        assert op == "hold"
        self.made = []
        self.held = [draw(CASE.inputs, CASE.literals, 9, "cpu") for _ in range(fields["count"])]
        return {"inputs": [[described(b) for b in inputs.buffers] for inputs in self.held]}

    def begin(self, op: str, ticket: int) -> None:
        self.made, self.ticket = [torch.zeros_like(inputs.args[0]) for inputs in self.held], ticket
        if self.queues:
            self._theirs.send(b"x")

    def answer(self, op: str) -> dict[str, Any]:
        if self.queues:
            self.channel.recv(1)
        return {"outputs": [[lying(out)] for out in self.made]}

    def _work(self) -> None:
        for out, inputs in zip(self.made, self.held, strict=True):
            out.copy_(self.works(inputs.args[0]))
        self.words[DONE_AT] = self.last


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Process]]:
    monkeypatch.setattr(gates, "_QUEUED_S", 0.0)
    monkeypatch.setattr(gates, "_MOST_S", 0.0)
    processes: list[Process] = []

    def make(works: Callable[[torch.Tensor], torch.Tensor] = torch.exp, **how: bool) -> Process:
        processes.append(Process(works, **how))
        return processes[-1]

    yield make
    for one in processes:
        one.close()


def opened(process: Process, device: Device, count: int = 3) -> Gate:
    return Gate(process, device, CASE, OUTPUTS, count, lambda held: process.log.append("evicted"), device="cpu")  # type: ignore[arg-type]


def test_calls_get_values_that_come_while_their_process_is_stopped(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    with opened(process, device) as gate:
        process.log.clear()
        passage = gate.through([11, 12, 13], True)
        assert passage is not None
        assert torch.equal(passage.outputs[1][0], torch.exp(draw(CASE.inputs, CASE.literals, 12, "cpu").args[0]))
        assert process.log == ["stopped", "evicted", "go", "released", "drained"]
        assert passage.us > 0
        again = gate.through([21, 22, 21], True)
        assert again is not None
        assert torch.equal(again.outputs[2][0], torch.exp(draw(CASE.inputs, CASE.literals, 21, "cpu").args[0]))
    assert device.mapped == 0, "what was mapped was given back"


def test_calls_that_cannot_be_held_back_get_their_values_before_they_are_asked_for(
    made: Callable[..., Process],
) -> None:
    process, device = made(), Device()
    with opened(process, device) as gate:
        process.log.clear()
        passage = gate.at_once([11, 12, 13], True)
        assert passage is not None
        assert torch.equal(passage.outputs[0][0], torch.exp(draw(CASE.inputs, CASE.literals, 11, "cpu").args[0]))
        assert process.log == ["turn", "stopped", "evicted", "released", "go", "drained"]
    assert device.mapped == 0


def test_a_second_gate_before_one_process_is_shut_too(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    for seeds in ([1, 2, 3], [4, 5, 6]):
        with opened(process, device) as gate:
            go = process.words[GO_AT]
            gate.through(seeds, False)
            assert process.words[GO_AT] == go + 1, "a word that holds a later number would let calls through at once"


def test_calls_that_cannot_be_queued_are_let_go_and_told(made: Callable[..., Process]) -> None:
    process, device = made(queues=False), Device()
    with opened(process, device) as gate:
        assert gate.through([1, 2, 3], False) is None
        assert process.words[DONE_AT] == process.last, "nothing is left waiting"


def test_calls_that_are_never_over_are_told_and_their_process_goes_on(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    with opened(process, device) as gate:
        process.ends = False
        assert gate.through([1, 2, 3], False) is None
    assert process.log[-2:] == ["released", "drained"]
    assert device.mapped == 0


def test_outputs_that_calls_share_are_noticed(made: Callable[..., Process]) -> None:
    class OneBuffer(Process):
        def answer(self, op: str) -> dict[str, Any]:
            reply = super().answer(op)
            return {"outputs": [reply["outputs"][0] for _ in reply["outputs"]]}

    assert opened(made(), Device()).distinct
    sharing = OneBuffer(torch.exp)
    assert not opened(sharing, Device()).distinct
    assert opened(sharing, Device(), 1).distinct
    sharing.close()


def test_memory_that_cannot_be_reached_is_no_trick(made: Callable[..., Process]) -> None:
    process, device = made(), Device()
    device.refuses = True
    with pytest.raises(Fault, match="cannot be reached: no such handle") as caught:
        opened(process, device)
    assert caught.value.status == "RUNTIME_ERROR"


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


def test_calls_wait_until_the_device_does_nothing_else() -> None:
    taken = [62.0, 60.0, 61.0, 60.0, 65.0, 900.0, 400.0, 64.0, 70.0]
    sweep = Sweep(lambda: taken.pop(0))
    sweep(True)
    assert taken == [70.0], "work that another has left is waited for, and noise is none"
    sweep(True)
    taken += [150.0] * 7
    sweep(False)
    assert taken == [150.0], "what it takes at best is another thing while calls are held back"
    times = iter([60.0] * 5)
    busy = Sweep(lambda: next(times, 500.0))
    with pytest.raises(Fault, match="works while nothing of this evaluation should") as caught:
        busy(True)
    assert caught.value.status == "DEVICE_BUSY"


class Queue:
    """A stream, on which nothing waits."""

    def __init__(self, shared: mmap.mmap) -> None:
        self.log: list[tuple[str, int]] = []

    def wait(self, ticket: int) -> None:
        self.log.append(("wait", ticket))

    def tell(self, value: int) -> None:
        self.log.append(("tell", value))


@pytest.mark.parametrize("made_by", [lambda x: 2 * x, lambda x: (2 * x).t(), lambda x: (2 * x)[:, :3]])
def test_a_runner_queues_the_calls_between_the_two_words_and_says_where_the_outputs_lie(
    monkeypatch: pytest.MonkeyPatch, made_by: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    device = Device()
    monkeypatch.setattr(runner_side, "Stream", Queue)
    monkeypatch.setattr(runner_side, "on_device", SimpleNamespace(CudaDriver=lambda: device, named=named))
    with mmap.mmap(-1, 1 << 12) as shared:
        one = Candidate("cpu", 1 << 12, shared)
        called: list[torch.Tensor] = []
        one._function = lambda x: called.append(x) or made_by(x)  # type: ignore[func-returns-value]
        spec = {"kind": "normal", "shape": [3, 5], "dtype": "float32", "args": {"scale": 1.0, "shift": 0.0}}
        one.workload({"inputs": [{"spec": spec}], "params": {}, "outputs": [], "literals": []})
        held = one.hold({"count": 2, "distribution": "normal", "layout": "contiguous"})["inputs"]
        assert [len(call) for call in held] == [1, 1]
        told = one.enqueue({"ticket": 7})["outputs"]
        one.tell({"value": 9})
        assert one._gate.log == [("wait", 7), ("tell", 9)]
        gate = object.__new__(Gate)
        gate._driver, gate._maps = device, {}
        for x, call in zip(called, told, strict=True):
            assert torch.equal(gate._read([call])[0][0], made_by(x))


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
    patch.setattr(queueing, "DONE_AT", 128)
    patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    return queueing.Stream(mmap.mmap(-1, 1 << 12), lambda address, size: registered)


def test_a_stream_waits_for_one_word_and_writes_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    made = stream(monkeypatch, library)
    made.wait(7)
    made.tell(9)
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
        stream(monkeypatch, library, registered).wait(1)
