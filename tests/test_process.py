"""One candidate's process from the harness's side: what it hands back, and every way in which it can end."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluating import PROBLEMS, processes

from kopt_mcp.evaluator import sandbox, shared
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.process import CandidateProcess, Source
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs, judge_all
from kopt_mcp.evaluator.runners import Place
from kopt_mcp.evaluator.shared import SharedMemory
from kopt_mcp.evaluator.zygote import Zygote
from kopt_mcp.problem import Problem

RIGHT = "import torch\ndef softmax(x):\n    return torch.softmax(x, dim=-1)\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, seed_cache = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("cache")
    made = Place(Zygote("cpu", fork=False), folder, "cpu", 1 << 20, seed_cache)
    yield made
    made.spares.close()
    made.zygote.close()


@pytest.fixture(scope="module")
def problem() -> Problem:
    file = PROBLEMS / "softmax.py"
    return load_problem(file.read_bytes(), str(file))


def process(place: Place, problem: Problem, text: str, timeout_s: float = 20.0, name: str = "a") -> CandidateProcess:
    return CandidateProcess(place, problem, Source(text.encode(), name * 64, ".py"), timeout_s)


def call(running: CandidateProcess, problem: Problem, seed: int = 1) -> tuple[dict[str, Any], Any]:
    case = problem.case(problem.workloads[1])
    expected = expected_outputs(problem, case, seed, "cpu")
    running.workload(case, describe_outputs(expected))
    reply = running.ask(
        "call",
        seed=seed,
        distribution="normal",
        layout="contiguous",
        poison=255,
        own_stream=False,
        first_seed=None,
        shares=False,
    )
    return reply, expected


def fault(place: Place, problem: Problem, text: str, timeout_s: float = 20.0) -> Fault:
    """How a candidate fails, with nothing left of it."""
    before = processes()
    caught: Fault | None = None
    with process(place, problem, text, timeout_s) as running:
        try:
            running.start()
            call(running, problem)
        except Fault as fault:
            caught = fault
    assert processes() == before
    assert caught is not None
    return caught


def test_outputs_come_back_as_bytes_and_are_right(place: Place, problem: Problem) -> None:
    with process(place, problem, RIGHT) as running:
        running.start()
        reply, expected = call(running, problem)
        assert judge_all(running.outputs(reply), expected).status == "PASSED"
        assert reply["violations"] == []
        assert running.isolation["session"] == "own"
        assert running.close() == ""
        assert running.close() == "", "closing twice is no harm"


def test_two_processes_have_each_its_own_memory(place: Place, problem: Problem) -> None:
    zeros = "import torch\ndef softmax(x):\n    return torch.zeros_like(x)\n"
    with process(place, problem, RIGHT) as one, process(place, problem, zeros, name="b") as two:
        one.start()
        two.start()
        reply, expected = call(one, problem)
        call(two, problem)
        assert judge_all(one.outputs(reply), expected).status == "PASSED"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("raise ValueError('no such luck')", "RUNTIME_ERROR", r"ValueError: no such luck \(line 4: raise"),
        ("os._exit(0)", "RUNTIME_ERROR", "exited with code 0 during 'call'"),
        ("os._exit(3)", "RUNTIME_ERROR", "exited with code 3"),
        ("sys.exit(0)", "RUNTIME_ERROR", "SystemExit"),
        ("ctypes.string_at(0)", "RUNTIME_ERROR", "was killed by SIGSEGV"),
        ("os.abort()", "RUNTIME_ERROR", "was killed by SIGABRT"),
        ("raise MemoryError", "OUT_OF_MEMORY", "MemoryError"),
        ("return 7", "INCORRECT_SHAPE", "output 0 is a int, expected a tensor"),
        ("return x.to_sparse()", "CHEATED", "not dense"),
        ("return torch.zeros(1).expand(1 << 50)", "INCORRECT_SHAPE", "elements that share memory"),
        ("print('last words', flush=True); os._exit(1)", "RUNTIME_ERROR", "last words"),
    ],
)
def test_a_failing_call_has_a_status_and_a_reason(
    place: Place, problem: Problem, body: str, status: str, words: str
) -> None:
    failed = fault(place, problem, f"import ctypes, os, sys\nimport torch\ndef softmax(x):\n    {body}\n")
    assert failed.status == status
    assert re.search(words, failed.detail), failed.detail


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("def softmax(x:\n    return x\n", "COMPILE_ERROR", "SyntaxError"),
        ("import a_package_that_is_not_there\n", "COMPILE_ERROR", "No module named"),
        ("def soft_max(x):\n    return x\n", "COMPILE_ERROR", "no function 'softmax'"),
        ("raise RuntimeError('at import')\n", "RUNTIME_ERROR", "at import"),
        ("import os\nos._exit(0)\n", "RUNTIME_ERROR", "during 'load'"),
    ],
)
def test_a_candidate_that_does_not_load_leaves_nothing_behind(
    place: Place, problem: Problem, text: str, status: str, words: str
) -> None:
    failed = fault(place, problem, text)
    assert failed.status == status
    assert words in failed.detail


@pytest.mark.parametrize("end", [CandidateProcess.close, CandidateProcess.abandon])
def test_a_process_that_has_not_begun_or_has_ended_is_asked_nothing(
    place: Place, problem: Problem, end: Callable[[CandidateProcess], object]
) -> None:
    fresh, ended = process(place, problem, RIGHT), process(place, problem, RIGHT).start()
    end(ended)
    for running in (fresh, ended):
        with pytest.raises(Fault, match="the candidate's process has ended") as caught:
            running.ask("forget")
        assert caught.value.status == "RUNTIME_ERROR"


def test_a_candidate_that_says_goodbye_and_ends_otherwise_is_told_of(place: Place, problem: Problem) -> None:
    text = "import os\nend = os._exit\nos._exit = lambda status: end(3)\n" + RIGHT
    with process(place, problem, text) as running:
        running.start()
        assert running.close() == "it did not end by itself"


def test_a_hang_ends_at_its_time_limit(place: Place, problem: Problem) -> None:
    text = (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ndef softmax(x):\n    while True:\n        pass\n"
    )
    failed = fault(place, problem, text, timeout_s=1.0)
    assert failed.status == "TIMEOUT"
    assert failed.detail == "no answer to 'call' within 1 s; the process was ended"


def test_fifty_children_and_a_daemon_are_ended_with_it(place: Place, problem: Problem) -> None:
    text = (
        "import os, signal, torch\n"
        "for n in range(50):\n"
        "    if os.fork() == 0:\n"
        "        if n % 2: os.setsid()\n"
        "        signal.pause()\n" + RIGHT
    )
    before = processes()
    with process(place, problem, text) as running:
        running.start()
        call(running, problem)
        assert "left 50 process(es) running" in running.close()
    assert processes() == before


def test_ten_megabytes_of_output_block_nothing(place: Place, problem: Problem) -> None:
    with process(place, problem, "print('x' * 10_000_000)\n" + RIGHT) as running:
        running.start()
        reply, expected = call(running, problem)
        assert judge_all(running.outputs(reply), expected).status == "PASSED"


def test_only_the_process_whose_turn_it_is_runs(place: Place, problem: Problem) -> None:
    with process(place, problem, RIGHT) as one, process(place, problem, RIGHT, name="b") as two:
        one.start()
        two.start()
        below = sandbox.descendants(place.zygote.pid)  # of each: two that wait, and the runner
        first, second = below[len(below) // 2 - 1], below[-1]
        call(one, problem)
        assert (stopped(first), stopped(second)) == (False, True)
        call(two, problem)
        assert (stopped(first), stopped(second)) == (True, False)


def stopped(pid: int) -> bool:
    """Stopped or waiting: a signal takes a moment to arrive at one that runs."""
    while (letter := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) == "R":
        pass
    return letter == "T"


@pytest.mark.parametrize(
    "meta",
    [
        None,
        7,
        {},
        {"shape": [2], "dtype": "float32", "offset": 0, "bytes": 4},
        {"shape": [2], "dtype": "no_such", "offset": 0, "bytes": 8},
        {"shape": [2], "dtype": "nn", "offset": 0, "bytes": 8},
        {"shape": [-2], "dtype": "float32", "offset": 0, "bytes": -8},
        {"shape": [True], "dtype": "float32", "offset": 0, "bytes": 4},
        {"shape": [2], "dtype": "float32", "offset": 1 << 34, "bytes": 8},
        {"shape": [2], "dtype": "float32", "offset": -8, "bytes": 8},
        {"shape": [0, 10**30], "dtype": "float32", "offset": 0, "bytes": 0},
        {"shape": [2.0], "dtype": "float32", "offset": 0, "bytes": 8},
    ],
)
def test_a_description_that_makes_no_sense_is_a_lie_and_no_failure_of_ours(meta: Any) -> None:
    memory = SharedMemory()
    try:
        with pytest.raises(Fault) as caught:
            memory.read(meta, "cpu")
        assert caught.value.status == "CHEATED"
    finally:
        memory.close()


def test_the_shared_memory_cannot_be_made_smaller_by_the_other_side() -> None:
    memory = SharedMemory()
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, 0)
        described = memory.write([torch.arange(3.0), torch.zeros(0, 2), torch.ones(2, 2, dtype=torch.int16)])
        assert [memory.read(d, "cpu").tolist() for d in described] == [[0, 1, 2], [], [[1, 1], [1, 1]]]
    finally:
        memory.close()


def test_where_memory_has_no_file_of_its_own_an_unnamed_one_is_shared_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(shared, "SHARED_BYTES", 1 << 16)
    memory = SharedMemory()
    assert os.fstat(memory.fd).st_nlink == 0, "nobody else can open it"
    (described,) = memory.write([torch.arange(3.0)])
    assert os.pread(memory.fd, described["bytes"], described["offset"]) == torch.arange(3.0).numpy().tobytes()
    assert memory.read(described, "cpu").tolist() == [0, 1, 2]
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory.fd)


class Runtime:
    """CUDA's, as far as memory is pinned by it; which pieces are, by their size."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.pinned, self.asked = code, dict[int, int](), list[int]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert address not in self.pinned, "what is pinned already cannot be pinned once more"
        self.asked.append(size)
        if self.code == 0:
            self.pinned[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


@pytest.mark.parametrize("code", [0, 801])
def test_what_is_read_for_a_gpu_is_pinned_as_far_as_it_was_read_and_copied_without_that_too(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    runtime = Runtime(code)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    memory = SharedMemory()
    small, large = memory.write([torch.arange(3.0), torch.arange(100.0)])
    for described, count in ((small, 3), (large, 100), (small, 3)):
        assert torch.equal(memory.read(described, "cpu:0"), torch.arange(float(count)))  # "cpu" itself is not pinned
    assert runtime.asked == ([12, 464] if code == 0 else [12, 464, 12])
    assert list(runtime.pinned.values()) == ([464] if code == 0 else [])
    memory.close()
    assert runtime.pinned == {}
