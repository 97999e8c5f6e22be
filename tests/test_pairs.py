"""Pairs of processes for the harness's own clock: what happens in which order, with processes that only note it."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from evaluating import PROBLEMS

from kopt_mcp.evaluator import pairs as module
from kopt_mcp.evaluator.audit import Pair
from kopt_mcp.evaluator.faults import Fault, IncumbentFault
from kopt_mcp.evaluator.harness import Harness, load_problem
from kopt_mcp.evaluator.pairs import Pairs, each
from kopt_mcp.evaluator.passage import NotShared, Went
from kopt_mcp.evaluator.process import CandidateProcess, Source
from kopt_mcp.evaluator.spent import Spent


class Process:
    """A candidate's process."""

    def __init__(self, source: str, log: list[str]) -> None:
        self.source, self.log, self.spent = source, log, Spent()
        self.fails: dict[str, Exception] = {}

    def does(self, what: str) -> None:
        self.log.append(f"{what} {self.source}")
        if error := self.fails.pop(what, None):
            raise error

    def take(self) -> None:
        self.does("take")

    def load(self) -> None:
        self.does("load")

    def ask(self, op: str, alone: bool) -> None:
        assert not alone
        self.does(op)

    def abandon(self) -> None:
        self.does("abandon")


class Sampler:
    """Calls that are noted."""

    def wake_up(self, arm: Any, seed: int) -> None:
        arm.process.does("call")


class Made:
    """Pairs, and what is made for them."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.fails = log, dict[str, Exception]()
        self.made: list[Process] = []
        self.known_us = lambda: 300.0
        turn = SimpleNamespace(rest=lambda: log.append("rest all"))
        spares = SimpleNamespace(settle=lambda: log.append("settle all"))
        self.place: Any = SimpleNamespace(turn=turn, spares=spares)
        self.pairs = Pairs(self.place, self._make, None, 5.0, Random(1))  # type: ignore[arg-type]
        self.own: Any = [Process("candidate", log), Process("incumbent", log)]
        self.sampler: Any = Sampler()

    def _make(self) -> Any:
        made = [Process("candidate", self.log), Process("incumbent", self.log)]
        made[1].fails = self.fails
        self.made += made
        return made


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Made:
    log: list[str] = []
    made = Made(log)

    class Passage:
        def __init__(self, line: Any, clock: Any, candidate: bool) -> None:
            assert not candidate
            self.process = line.process

        def known(self, kind: int) -> Went:
            self.process.does("known")
            return Went(made.known_us() + kind, 70.0)

    def line(process: Process) -> Any:
        process.does("line")
        return SimpleNamespace(process=process, close=lambda: log.append(f"no-line {process.source}"))

    monkeypatch.setattr(module, "Passage", Passage)
    monkeypatch.setattr(module, "Line", line)
    monkeypatch.setattr(module, "CandidateProcess", Process)
    return made


def steps(log: list[str]) -> list[str]:
    """What was done, each step once where several came in a row, whatever the process."""
    words = [entry.split(" ")[0] for entry in log]
    return [word for at, word in enumerate(words) if at == 0 or words[at - 1] != word]


def started(one: Made, stack: ExitStack) -> Pair:
    one.pairs.start(one.own, stack)
    with one.pairs.nth(one.sampler, 0) as pair:
        assert pair is not None
        return pair


def test_our_own_calls_pass_before_the_candidates_are_loaded(one: Made) -> None:
    with ExitStack() as stack:
        pair = started(one, stack)
        assert steps(one.log) == ["take", "line", "known", "load"]
        assert pair.known is not None
        assert pair.known.us == 5.0
        assert [[len(kind) for kind in arm] for arm in pair.known.before] == [[9, 9, 9], [9, 9, 9]]
        assert one.made == [], "they are those that are timed"


def test_other_processes_start_while_those_that_were_timed_rest_and_end_when_they_were_looked_at(one: Made) -> None:
    with ExitStack() as stack:
        started(one, stack)
        for _ in range(2):
            one.log.clear()
            with one.pairs.nth(one.sampler, 1) as pair:
                assert pair is not None
                assert pair.known is not None
                assert steps(one.log) == ["drain", "rest", "take", "line", "known", "load", "call"]
                one.log.clear()
            assert steps(one.log) == ["no-line", "abandon"], "lines first, and at once: calls are timed next"
    assert len(one.made) == 4


@pytest.mark.parametrize("what", ["take", "load", "call"])
def test_where_others_cannot_be_had_there_are_none_and_nothing_is_left(one: Made, what: str) -> None:
    with ExitStack() as stack:
        started(one, stack)
        one.fails[what] = Fault("OUT_OF_MEMORY", "no room")
        one.log.clear()
        with one.pairs.nth(one.sampler, 1) as pair:
            assert pair is None
        assert one.log[-2:] == ["abandon candidate", "abandon incumbent"]
        lines = sum(entry.startswith("line") for entry in one.log)
        assert sum(entry.startswith("no-line") for entry in one.log) == lines


@pytest.mark.parametrize("what", ["load", "call"])
def test_a_trick_in_other_processes_is_told_and_nothing_of_them_is_left(one: Made, what: str) -> None:
    with ExitStack() as stack:
        started(one, stack)
        one.fails[what] = Fault("CHEATED", "it moved its socket")
        one.log.clear()
        with pytest.raises(IncumbentFault, match="it moved its socket") as caught, one.pairs.nth(one.sampler, 1):
            pass
        assert caught.value.status == "CHEATED"
        assert one.log[-2:] == ["abandon candidate", "abandon incumbent"]
        lines = sum(entry.startswith("line") for entry in one.log)
        assert sum(entry.startswith("no-line") for entry in one.log) == lines


def test_those_that_were_timed_answer_for_themselves(one: Made) -> None:
    with ExitStack() as stack:
        started(one, stack)
        one.own[1].fails["drain"] = Fault("RUNTIME_ERROR", "it is gone")
        with pytest.raises(IncumbentFault, match="it is gone"), one.pairs.nth(one.sampler, 1):
            pass


def test_no_others_start_once_they_took_long(one: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    with ExitStack() as stack:
        started(one, stack)
        for _ in range(3):
            with one.pairs.nth(one.sampler, 1) as pair:
                assert pair is not None
                now += 7.0
        with one.pairs.nth(one.sampler, 1) as pair:
            assert pair is None


def test_one_that_was_seen_to_cheat_meanwhile_is_told(one: Made) -> None:
    def woken() -> None:
        raise Fault("CHEATED", "it went on")

    with ExitStack() as stack:
        started(one, stack)
        one.place.turn.rest = woken
        with pytest.raises(Fault, match="it went on"), one.pairs.nth(one.sampler, 1):
            pass


def test_where_our_own_calls_cannot_pass_nothing_is_known_and_all_else_goes_on(one: Made) -> None:
    with ExitStack() as stack:
        one.own[0].fails["known"] = NotShared()
        assert started(one, stack).known is None
        assert steps(one.log)[-1] == "load"


FAILURES = [("known", Fault("TIMEOUT", "it hangs")), ("line", OSError(712, "already registered"))]


@pytest.mark.parametrize(("what", "error"), FAILURES)
def test_a_process_that_fails_before_it_has_a_candidate_is_replaced(one: Made, what: str, error: Exception) -> None:
    with ExitStack() as stack:
        one.own[1].fails[what] = error
        pair = started(one, stack)
        assert pair.known is not None
        assert steps(one.log)[-5:] == ["abandon", "take", "line", "known", "load"]


@pytest.mark.parametrize(("what", "error"), FAILURES)
def test_where_they_fail_again_nothing_is_known(
    one: Made, monkeypatch: pytest.MonkeyPatch, what: str, error: Exception
) -> None:
    does = one.own[1].does

    def fails(step: str) -> None:
        does(step)
        if step == what:
            raise error

    monkeypatch.setattr(one.own[1], "does", fails)
    with ExitStack() as stack:
        assert started(one, stack) == ((), None)
        assert steps(one.log)[-3:] == ["abandon", "take", "load"]
        assert one.log.count("line incumbent") == 2


def test_calls_of_our_own_that_are_disturbed_too_much_tell_nothing(one: Made) -> None:
    chance = Random(2)
    one.known_us = lambda: 300.0 + chance.gauss(0.0, 30.0)
    with ExitStack() as stack:
        assert started(one, stack).known is None


def test_where_calls_of_our_own_are_disturbed_they_pass_again_once_nothing_starts_or_ends(one: Made) -> None:
    chance = Random(2)
    one.known_us = lambda: 300.0 if "settle all" in one.log else 300.0 + chance.gauss(0.0, 30.0)
    with ExitStack() as stack:
        pair = started(one, stack)
    assert pair.known is not None
    assert pair.known.well
    assert "settle all" in one.log


def test_the_fault_of_a_step_is_that_of_whose_process_it_was(one: Made) -> None:
    one.own[1].fails["load"] = Fault("RUNTIME_ERROR", "gone")
    with pytest.raises(IncumbentFault):
        each(one.own, Process.load)  # type: ignore[arg-type]
    for process in one.own:
        process.fails["load"] = Fault("RUNTIME_ERROR", "gone")
    with pytest.raises(Fault) as caught:
        each(one.own, Process.load)  # type: ignore[arg-type]
    assert not isinstance(caught.value, IncumbentFault), "the candidate's goes first"


COUNTS = b"""
import threading, time, torch
def count():
    n = 0
    while True:
        n += 1
        open("count", "w").write(str(n))
        time.sleep(0.001)
threading.Thread(target=count, daemon=True).start()
def softmax(x):
    return torch.softmax(x, -1)
"""
PLAIN = b"import torch\ndef softmax(x):\n    return torch.softmax(x, -1)\n"


class Real:
    """Pairs of real processes on a CPU, which has no line to them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.harness = Harness("cpu", folder)
        self.seen: Callable[[Any], Went] = lambda process: Went(300.0, 70.0)
        self.sampler: Any = SimpleNamespace(wake_up=lambda arm, seed: arm.process.ask("forget", alone=False))
        path = PROBLEMS / "softmax.py"
        problem = load_problem(path.read_bytes(), str(path))
        sources = [Source(code, sha256(code).hexdigest(), ".py") for code in (COUNTS, PLAIN)]

        def made() -> list[CandidateProcess]:
            return [CandidateProcess(self.harness._place, problem, source, 20.0) for source in sources]

        def passage(line: Any, clock: Any, candidate: bool) -> Any:
            return SimpleNamespace(known=lambda kind: self.seen(line.process))

        patch.setattr(module, "Passage", passage)
        patch.setattr(module, "Line", lambda process: SimpleNamespace(process=process, close=lambda: None))
        self.pairs = Pairs(self.harness._place, made, None, 5.0, Random(1))  # type: ignore[arg-type]
        self.own = made()


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Real]:
    one = Real(tmp_path, monkeypatch)
    yield one
    one.harness.close()


def test_a_candidate_that_was_timed_does_nothing_while_other_processes_start(real: Real) -> None:
    with ExitStack() as stack:
        own = [stack.enter_context(process) for process in real.own]
        real.pairs.start(own, stack)
        count = own[0].runner.folder / "count"

        def goes_on(than: str) -> bool:
            deadline = time.monotonic() + 60.0
            while (now := count.read_text() if count.exists() else "") in ("", than):
                assert time.monotonic() < deadline, "it stands still"
                time.sleep(0.001)
            return now != ""

        assert goes_on("")
        for last in (0, 1):
            own[1 - last].ask("forget")
            own[last].ask("forget")
            counts: list[str] = []

            def seen(process: Any, counts: list[str] = counts) -> Went:
                process.turn.share(process.runner.pid)
                counts.append(count.read_text())
                time.sleep(0.03 if len(counts) in (1, 27) else 0.0)  # long enough for it to be seen to go on
                return Went(300.0, 70.0)

            real.seen = seen
            with real.pairs.nth(real.sampler, 1) as pair:
                assert pair is not None
            assert len(counts) == 54
            assert len(set(counts)) == 1, "it has stood still"
            own[0].ask("forget")
            assert goes_on(counts[-1])


def test_a_runner_that_dies_before_it_has_a_candidate_is_replaced_by_another(real: Real) -> None:
    died: list[int] = []

    def dies(process: Any) -> Went:
        if not died:
            died.append(process.runner.pid)
            os.kill(process.runner.main_pid, signal.SIGKILL)
            process.answer("enqueue")
        return Went(300.0, 70.0)

    real.seen = dies
    with ExitStack() as stack:
        own = [stack.enter_context(process) for process in real.own]
        real.pairs.start(own, stack)
        with real.pairs.nth(real.sampler, 0) as pair:
            assert pair is not None
            assert pair.known is not None
        assert died[0] not in [process.runner.pid for process in own]
        assert len([process.ask("forget") for process in own]) == 2, "both have their candidates"
