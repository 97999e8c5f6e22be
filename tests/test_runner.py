"""The runner's own side, called in this process: what it notices when nobody has bent it."""

import ctypes
import mmap
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from kopt_mcp.evaluator import sealing
from kopt_mcp.evaluator.candidate import Candidate
from kopt_mcp.evaluator.channel import Channel
from kopt_mcp.evaluator.native import BuildError
from kopt_mcp.evaluator.operators import kernel_rows
from kopt_mcp.evaluator.outbox import COUNT, FAILED, PLACE, TOKEN_BYTES
from kopt_mcp.evaluator.peeking import Unreadable
from kopt_mcp.evaluator.runner import serve
from kopt_mcp.evaluator.seals import Seal
from kopt_mcp.evaluator.shared import SharedMemory
from kopt_mcp.evaluator.watching import Structure, fingerprint, late

ROWS, COLS = 4, 6
SPEC = {"kind": "normal", "shape": [ROWS, COLS], "dtype": "float32", "args": {"scale": 1.0, "shift": 0.0}}
WORKLOAD = {
    "inputs": [{"spec": SPEC}],
    "params": {"rows": ROWS, "cols": COLS},
    "outputs": [{"shape": [ROWS, COLS], "dtype": "float32", "bytes": 4 * ROWS * COLS}],
    "literals": [],
}
CALL = {"seed": 1, "distribution": "normal", "layout": "contiguous", "poison": 255, "own_stream": False}
CALL |= {"first_seed": None, "shares": False}
LOAD: dict[str, Any] = {
    "entry": "f",
    "adapter": "",
    "adapter_spec": {},
    "arguments": [],
    "mutates": [],
    "scratch": [],
    "on_device": False,
}
LOAD |= {"build_timeout_s": 60, "cpu_s": 1 << 30}
SAMPLE = {"seed": 2, "distribution": "normal", "layout": "contiguous", "spin_us": 1.0, "warm": False, "keep": True}


@pytest.fixture
def shared() -> Iterator[mmap.mmap]:
    memory = mmap.mmap(-1, 1 << 16)
    yield memory
    memory.close()


def loaded(shared: mmap.mmap, folder: Path, text: str, suffix: str = ".py", **job: Any) -> Candidate:
    file = folder / f"kernel{suffix}"
    file.write_text(text, encoding="utf-8")
    made = Candidate("cpu", 1 << 12, shared)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made.load({**LOAD, "source": file.name, **job})
    made.workload(WORKLOAD)
    return made


def body(text: str) -> str:
    return f"import torch\ndef f(x):\n    {text}\n"


def test_a_call_hands_back_bytes_and_no_violations(shared: mmap.mmap, tmp_path: Path) -> None:
    reply = loaded(shared, tmp_path, body("return 2 * x")).call(CALL)
    assert reply["violations"] == []
    assert reply["outputs"] == [{"shape": [ROWS, COLS], "dtype": "float32", "offset": 0, "bytes": 96}]


@pytest.mark.parametrize(
    ("text", "words"), [("def g(x): ...\n", "defines g"), ("from math import exp\n", "defines none")]
)
def test_a_file_without_the_function_says_which_it_has(
    shared: mmap.mmap, tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(BuildError, match=f"no function 'f', which the problem calls; it {words}"):
        loaded(shared, tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("out = 2 * x; x.zero_(); return out", "it changed its input 0"),
        ("torch.set_num_threads(torch.get_num_threads() + 1); return 2 * x", "the number of threads"),
        ("torch.manual_seed(0); torch.rand(1); return 2 * x", "random number generator's state"),
        ("torch.set_float32_matmul_precision('medium'); return 2 * x", "float32 matmul precision"),
        ("torch._C._set_grad_enabled(not torch.is_grad_enabled()); return 2 * x", "grad mode"),
    ],
)
def test_what_a_call_changes_is_reported_of_checked_and_of_timed_calls(
    shared: mmap.mmap, tmp_path: Path, text: str, words: str
) -> None:
    with global_state_restored():
        assert words in loaded(shared, tmp_path, body(text)).call(CALL)["violations"][0][1]
    with global_state_restored(), pytest.raises(Structure, match=r"in a timed call|a timed call changed an input"):
        loaded(shared, tmp_path, body(text)).sample(SAMPLE)


@contextmanager
def global_state_restored() -> Iterator[None]:
    threads, state, precision = torch.get_num_threads(), torch.get_rng_state(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
        torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(True)


def test_a_runner_has_called_everything_before_it_knows_a_candidate(shared: mmap.mmap, tmp_path: Path) -> None:
    made = loaded(shared, tmp_path, body("return 2 * x"))
    reply = made.call(CALL)
    made.prime()
    assert made._function is torch.clone
    made.workload(WORKLOAD)
    assert made.call(CALL)["violations"] == reply["violations"] == []


def test_an_output_may_lie_in_an_input_where_the_references_own_does(shared: mmap.mmap, tmp_path: Path) -> None:
    made = loaded(shared, tmp_path, body("return x"))
    with pytest.raises(Structure, match="shares the memory of an input; return memory of its own, and nothing for"):
        made.call(CALL)
    assert made.call({**CALL, "shares": True})["violations"] == []


def test_a_write_beside_an_input_is_reported(shared: mmap.mmap, tmp_path: Path) -> None:
    text = "import ctypes\n" + body("ctypes.memset(x.data_ptr() - 1, 0, 1); return 2 * x")
    candidate = loaded(shared, tmp_path, text)
    assert candidate.call(CALL)["violations"] == [["INCORRECT_NUMERICAL", "it wrote outside its inputs"]]
    with pytest.raises(Structure, match="memory beside it"):
        candidate.sample(SAMPLE)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("return x", "INCORRECT_NUMERICAL", "shares the memory of an input"),
        ("return x[1:]", "INCORRECT_NUMERICAL", "shares the memory of an input"),
        ("return 7", "INCORRECT_SHAPE", "is a int, expected a tensor"),
        ("return torch.empty(2, device='meta')", "INCORRECT_SHAPE", "is on meta, expected cpu"),
        ("return x.to_sparse()", "CHEATED", "not dense"),
        ("return torch.nn.Parameter(x.clone())", "CHEATED", "is a Parameter, a tensor subclass"),
        ("y = 2 * x; y.note = 1; return y", "CHEATED", "carries attributes of its own"),
        ("y = 2 * x; y._dynamo_note = print; return y", "CHEATED", "carries attributes of its own"),
        ("y = 2 * x; y.untyped_storage().resize_(0); return y", "CHEATED", "no memory behind it"),
        ("return torch.zeros(1 << 20)", "INCORRECT_SHAPE", "larger than expected"),
    ],
)
def test_an_output_that_is_no_plain_tensor_is_refused(
    shared: mmap.mmap, tmp_path: Path, text: str, kind: str, words: str
) -> None:
    with pytest.raises(Structure, match=words) as caught:
        loaded(shared, tmp_path, body(text)).call(CALL)
    assert caught.value.kind == kind


def test_what_torch_compile_notes_of_an_output_is_no_attribute_of_its_own(shared: mmap.mmap, tmp_path: Path) -> None:
    noted = body("y = 2 * x; y._dynamo_propagated_dynamic_indices = {0}; return y")  # as torch 2.13 does
    assert loaded(shared, tmp_path, noted).call(CALL)["violations"] == []


def test_a_second_look_finds_new_values_in_the_same_tensors(shared: mmap.mmap, tmp_path: Path) -> None:
    text = "import torch\nseen = []\ndef f(x):\n    seen.append((x.data_ptr(), x._version))\n    return 2 * x\n"
    candidate = loaded(shared, tmp_path, text)
    candidate.call({**CALL, "first_seed": 9})
    seen = candidate._function.__globals__["seen"]
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_a_timed_output_is_kept_until_it_is_forgotten(shared: mmap.mmap, tmp_path: Path) -> None:
    candidate = loaded(shared, tmp_path, body("return 2 * x"))
    claim = candidate.sample(SAMPLE)
    assert claim["us"] > 0
    (stored,) = candidate.fetch({"seed": 2})["outputs"]
    assert fingerprint([torch.frombuffer(shared, dtype=torch.float32, count=stored["bytes"] // 4)]) == claim["print"]
    assert candidate.settle(SAMPLE) == {}
    candidate.forget({})
    with pytest.raises(KeyError):
        candidate.fetch({"seed": 2})
    assert len(candidate.warm({**SAMPLE, "count": 3})["us"]) == 3


def test_inputs_that_may_change_come_back_first(shared: mmap.mmap, tmp_path: Path) -> None:
    candidate = loaded(shared, tmp_path, body("x.mul_(2)"), mutates=[0])
    reply = candidate.call(CALL)
    assert reply["violations"] == []
    assert len(reply["outputs"]) == 1


def test_a_c_function_gets_outputs_that_were_allocated_for_it(
    shared: mmap.mmap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        "#include <stdint.h>\n"
        "void f(const float *in, float *out, int64_t rows, int64_t cols) {\n"
        "    for (int64_t i = 0; i < rows * cols; i++) out[i] = 2 * in[i];\n}\n"
    )
    candidate = loaded(shared, tmp_path, text, ".c", arguments=["in0", "out0", "rows", "cols"])
    twice = loaded(shared, tmp_path, body("return 2 * x"))
    assert candidate.sample(SAMPLE)["print"] == twice.sample(SAMPLE)["print"]


def test_operators_of_a_call_are_listed(shared: mmap.mmap, tmp_path: Path) -> None:
    rows = loaded(shared, tmp_path, body("return x.exp()")).profile(CALL)["kernels"]
    assert "aten::exp" in {r["name"] for r in rows}


def test_kernels_of_a_gpu_are_listed_by_their_time_there_and_the_hosts_work_is_left_out() -> None:
    def event(key: str, where: str, device_us: float, host_us: float = 1.0) -> Any:
        kind = SimpleNamespace(name=where)
        times = {"self_device_time_total": device_us, "self_cpu_time_total": host_us}
        return SimpleNamespace(key=key, count=2, device_type=kind, **times)

    events = [
        event("short_kernel", "CUDA", 3.0),
        event("aten::exp", "CPU", 90.0),
        event("long_kernel", "CUDA", 50.0),
        event("cudaLaunchKernel", "CUDA", 0.0),
        event("never_called", "CPU", 0.0, 0.0),
    ]
    session = SimpleNamespace(key_averages=lambda: events)
    assert kernel_rows(session, on_gpu=True) == [
        {"name": "long_kernel", "calls": 2, "total_us": 50.0},
        {"name": "short_kernel", "calls": 2, "total_us": 3.0},
    ]
    assert len(kernel_rows(session, on_gpu=False)) == 4, "what took no time is no kernel"


def test_a_call_that_torch_would_send_through_other_code_is_told_where_calls_time_themselves(
    shared: mmap.mmap,
) -> None:
    class Other(TorchFunctionMode):
        pass

    on_gpu, on_cpu = (Candidate(device, 1 << 12, shared) for device in ("cuda", "cpu"))
    assert on_gpu.forget({}) == {}
    with Other():
        with pytest.raises(Structure, match="code of its own into torch's operators") as caught:
            on_gpu.forget({})
        assert on_cpu.forget({}) == {}, "there the harness holds the clock"
    assert caught.value.kind == "CHEATED"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("return torch.softmax(x, dim=-1)", ["_softmax"]),
        ("return (x.t().contiguous() + 1).reshape(-1)[1:].clone()", ["add"]),
        ("return torch.nn.functional.linear(x, x)", ["mm"]),
        ("return torch.from_numpy(numpy.exp(x.numpy()))", []),
    ],
)
def test_operators_that_compute_are_named(shared: mmap.mmap, tmp_path: Path, text: str, names: list[str]) -> None:
    assert loaded(shared, tmp_path, "import numpy\n" + body(text)).operators(CALL)["names"] == names


def test_a_fingerprint_tells_one_changed_bit_and_two_swapped_words() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    changed, swapped = x.clone(), x.clone()
    changed.view(torch.int32)[2, 1] ^= 1
    swapped[0, 0], swapped[0, 1] = x[0, 1], x[0, 0]
    assert len({tuple(fingerprint([t])) for t in (x, changed, swapped)}) == 3
    assert fingerprint([torch.tensor([1, 2, 3], dtype=torch.int8)])


def test_every_request_is_answered_once_until_goodbye(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(body("raise ValueError('no')"))
    ours, theirs = socket.socketpair()
    memory = SharedMemory()
    job = {"device": "cpu", "index": 0, "cache_bytes": 1 << 12, "shared_bytes": 1 << 16}
    thread = threading.Thread(target=serve, args=(Channel(theirs, "n"), memory.fd, {"session": "own"}, job))
    thread.start()
    channel = Channel(ours, "n")
    assert channel.receive(10)["isolation"] == {"session": "own"}
    answers = []
    load = {"op": "load", "source": "kernel.py", **LOAD}
    for message in (load, {"op": "workload", **WORKLOAD}, {"op": "call", **CALL}, {"op": "nonsense"}, {"op": "bye"}):
        channel.send(message)
        answers.append(channel.receive(10))
    thread.join()
    channel.close()
    theirs.close()
    memory.close()
    assert answers[:2] == [{"op": "load"}, {"op": "workload"}]
    assert answers[2]["fault"]["kind"] == "RUNTIME_ERROR"
    assert answers[2]["fault"]["text"].startswith("ValueError: no (line 3: raise ValueError")
    assert answers[3]["fault"]["kind"] == "RUNTIME_ERROR"
    assert answers[4] == {"op": "bye"}


def test_a_runner_whose_memory_lies_otherwise_than_known_goes_on_without_seals_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_runner(*_: object) -> list[Seal]:
        raise Unreadable("a dict is laid out differently")

    monkeypatch.setattr(sealing, "of_runner", of_runner)
    ours, theirs = socket.socketpair()
    memory = SharedMemory()
    job = {"device": "cpu", "index": 0, "cache_bytes": 1 << 12, "shared_bytes": 1 << 16, "sealed": True}
    thread = threading.Thread(target=serve, args=(Channel(theirs, "n"), memory.fd, {"session": "own"}, job))
    thread.start()
    channel = Channel(ours, "n")
    ready = channel.receive(10)
    channel.close()  # as where the harness has ended: nobody says goodbye
    thread.join()
    theirs.close()
    memory.close()
    assert ready["isolation"] == {"session": "own", "seals": "off: a dict is laid out differently"}
    assert ready["seals"] == []
    assert "fault" not in ready


def test_inputs_that_arrive_late_are_those_that_are_dense_and_hold_something() -> None:
    dense, gaps, empty = torch.arange(1.0, 200.0), torch.ones(4, 4)[:, :2], torch.zeros(0)
    before = [t.clone() for t in (dense, gaps)]
    finish = late([gaps, empty, dense])
    assert (torch.equal(gaps, before[1]), int((dense != before[0]).sum())) == (True, 4)
    finish()
    assert torch.equal(dense, before[0])
    assert torch.equal(gaps, before[1])


def test_a_timed_call_waits_for_the_word_and_says_where_its_output_lies(shared: mmap.mmap, tmp_path: Path) -> None:
    candidate = loaded(shared, tmp_path, body("return (2 * x).t()"))
    meta = {"shape": [ROWS, COLS], "dtype": "float32", "offset": 1 << 12, "bytes": 4 * ROWS * COLS}
    candidate.lay({"args": [{"at": meta, "strides": None}], "core": None})
    torch.frombuffer(shared, dtype=torch.float32, count=ROWS * COLS, offset=1 << 12).copy_(torch.arange(24.0))
    ours, theirs = socket.socketpair()
    token = bytes(range(TOKEN_BYTES))
    ours.sendall(token)
    reply = candidate.timed(Channel(theirs))
    said = ours.recv(1 << 12)
    assert said[:TOKEN_BYTES] == token
    assert COUNT.unpack_from(said, TOKEN_BYTES) == (1,)
    address, size, gaps = PLACE.unpack_from(said, TOKEN_BYTES + COUNT.size)
    assert gaps == 0
    assert struct.unpack("<24f", ctypes.string_at(address, size)) == tuple(2.0 * n for n in range(24))
    assert reply["outputs"] == [{"shape": [COLS, ROWS], "dtype": "float32", "strides": [1, COLS]}]
    assert candidate.hand_over({})["outputs"][0]["shape"] == [COLS, ROWS]
    ours.close()
    theirs.close()


@pytest.mark.parametrize(("text", "words"), [("raise ValueError('no')", "no"), ("return 7", "is a int")])
def test_a_timed_call_that_fails_says_so_at_once(shared: mmap.mmap, tmp_path: Path, text: str, words: str) -> None:
    candidate = loaded(shared, tmp_path, body(text))
    candidate.lay({"args": [{"value": 1.0}], "core": None})
    ours, theirs = socket.socketpair()
    ours.sendall(bytes(TOKEN_BYTES))
    with pytest.raises((ValueError, Structure), match=words):
        candidate.timed(Channel(theirs))
    assert COUNT.unpack_from(ours.recv(1 << 12), TOKEN_BYTES) == (FAILED,)
    ours.close()
    theirs.close()
