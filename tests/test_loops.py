"""A runner that answers from elsewhere than its own loop, or on another line, is seen from outside."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_seals import HONEST, PROBLEM, SAMPLE

from kopt_mcp.evaluator import loops
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.loops import Loop, Standing, standing
from kopt_mcp.evaluator.peeking import Unreadable, own_memory
from kopt_mcp.evaluator.process import CandidateProcess, Source
from kopt_mcp.evaluator.reference import describe_outputs, expected_outputs
from kopt_mcp.evaluator.runners import Place
from kopt_mcp.evaluator.zygote import Zygote


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, seed_cache = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("cache")
    made = Place(Zygote("cpu", fork=False), folder, "cpu", 1 << 12, seed_cache)
    made.sealed = True
    yield made
    made.spares.close()
    made.zygote.close()


FRAMES = """
import os, socket, struct, sys, threading, torch
def found(name):
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "serve":
            return frame.f_locals[name]
        frame = frame.f_back
"""
NEVER_RETURNS = (
    FRAMES
    + HONEST
    + """
def take_over(first):
    channel, runner = found("channel"), found("made")[0]
    runner._function = softmax
    channel.send({"op": first})
    while True:
        message = channel.receive()
        if message["op"] == "bye":
            os._exit(0)
        channel.send({"op": message["op"], **getattr(runner, message["op"])(message)})
take_over("load")
"""
)
SITS_BETWEEN = (
    FRAMES
    + HONEST
    + """
def relay(come, go):
    while data := come.recv(1 << 16):
        go.sendall(data)
line = found("channel").fileno()
outside = socket.socket(fileno=os.dup(line))
ours, theirs = socket.socketpair()
os.dup2(theirs.fileno(), line)
for pair in ((outside, ours), (ours, outside)):
    threading.Thread(target=relay, args=pair, daemon=True).start()
"""
)


def asked(place: Place, text: str) -> None:
    with CandidateProcess(place, PROBLEM, Source(text.encode(), "a" * 64, ".py"), 20.0) as running:
        running.start()
        case = PROBLEM.case(PROBLEM.workloads[1])
        running.workload(case, describe_outputs(expected_outputs(PROBLEM, case, 1, "cpu")))
        for seed in range(20):
            running.ask("sample", **SAMPLE, seed=seed)
            running.ask("forget")
        running.ask("warm", **SAMPLE, seed=1, count=1)


COMPILED = "import torch\nsoftmax = torch.compile(lambda x: torch.softmax(x, dim=-1), backend='eager')\n"


@pytest.mark.parametrize("text", [HONEST, COMPILED], ids=["plain", "with torch.compile, which evaluates calls itself"])
def test_a_runner_that_comes_back_after_each_answer_is_not_suspected(place: Place, text: str) -> None:
    asked(place, text)


def test_a_candidate_that_never_returns_and_answers_itself_is_seen(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_BACK_S", 0.05)
    with pytest.raises(Fault, match="never came back") as caught:
        asked(place, NEVER_RETURNS)
    assert caught.value.status == "CHEATED"


def test_a_candidate_that_sits_between_the_runner_and_its_line_is_seen(place: Place) -> None:
    with pytest.raises(Fault, match="moved the socket") as caught:
        asked(place, SITS_BETWEEN)
    assert caught.value.status == "CHEATED"


def told(answers: list[bytes]) -> Callable[[int], bytes]:
    return lambda address: answers.pop(0)


def test_a_runner_that_needs_a_moment_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "7" / "fd").mkdir(parents=True)
    answers = [bytes(8), bytes(8), (9).to_bytes(8, sys.byteorder)]
    Loop(7, Standing(1000, 9), 5, told(answers), tmp_path).require_back()
    assert answers == []


def line_of(folder: Path) -> Path:
    """The descriptors of process 7: its line, another file, and one that is closed just now."""
    fds = folder / "7" / "fd"
    fds.mkdir(parents=True)
    (fds / "3").symlink_to("/dev/null")
    (fds / "4").symlink_to("socket:[5]")
    (fds / "9").write_bytes(b"")  # no link can be read of it
    return fds


def test_a_line_is_where_it_was_as_long_as_its_numbers_are(tmp_path: Path) -> None:
    fds = line_of(tmp_path)
    loop = Loop(7, Standing(1000, 9), 5, told([]), tmp_path)
    loop.require_line()
    (fds / "9").unlink()
    (fds / "6").symlink_to("socket:[88]")
    loop.require_line()
    (fds / "8").symlink_to("socket:[5]")
    with pytest.raises(Fault, match="moved the socket") as caught:
        loop.require_line()
    assert caught.value.status == "CHEATED"


def test_a_process_that_has_ended_is_for_whoever_waits_for_its_answer_to_tell(tmp_path: Path) -> None:
    fds = line_of(tmp_path)

    def gone(address: int) -> bytes:
        raise OSError("No such process")

    loop = Loop(7, Standing(1000, 9), 5, gone, tmp_path)
    for entry in fds.iterdir():
        entry.unlink()
    fds.rmdir()
    loop.require_line()
    loop.require_back()
    with pytest.raises(OSError, match="No such file"):
        Loop(7, Standing(1000, 9), 5, gone, tmp_path)


def test_where_nobody_knows_how_an_interpreter_keeps_its_calls_nothing_is_looked_at(tmp_path: Path) -> None:
    line_of(tmp_path)
    answers = [bytes(8)]
    Loop(7, None, 5, told(answers), tmp_path).require_back()
    assert answers == [bytes(8)], "it was not asked"


@pytest.mark.parametrize("aligned", [True, False])
def test_only_a_pointer_to_a_calls_record_is_one(monkeypatch: pytest.MonkeyPatch, aligned: bool) -> None:
    """Of a frame laid out as the test wants it, with a stray word, two pointers to something else and no memory."""
    frame, waiting = sys._getframe(), told.__code__
    code = id(frame.f_code).to_bytes(8, sys.byteorder)
    record = bytes(24) + code if aligned else bytes(21) + code
    memory = {
        id(frame): b"".join(word.to_bytes(8, sys.byteorder) for word in (0, 0, 4097, 4096, 8192, 12288, 16384)),
        8192: bytes(64),
        12288: (bytes(3) + code).ljust(64, b"\0"),
        16384: record.ljust(64, b"\0"),
    }

    def own(address: int, size: int) -> bytes:
        assert address % 8 == 0, "an address that is none is not looked at"
        if address not in memory:
            raise Unreadable("memory that cannot be read: Bad address")
        return memory[address]

    monkeypatch.setattr(loops, "own_memory", own)
    assert standing(frame, waiting) == (Standing(16384 + 24, id(waiting)) if aligned else None)


def test_where_a_call_stands_is_found_by_what_is_called_there() -> None:
    def waiting(where: Standing) -> int:
        return int.from_bytes(own_memory(where.address, 8), sys.byteorder)

    def here() -> Standing | None:
        return standing(sys._getframe(), waiting.__code__)

    found = here()
    assert found is not None
    assert waiting(found) == found.value == id(waiting.__code__)
