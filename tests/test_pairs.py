"""Pairs of processes for the harness's own clock: what happens in which order, with processes that only note it."""

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kopt_mcp.evaluator import pairs as module
from kopt_mcp.evaluator.faults import Fault, IncumbentFault
from kopt_mcp.evaluator.pairs import Pairs, each
from kopt_mcp.evaluator.passage import NotShared, Went
from kopt_mcp.evaluator.spent import Spent


class Process:
    """A candidate's process."""

    def __init__(self, source: str, log: list[str]) -> None:
        self.source, self.log, self.spent = source, log, Spent()
        self.fails = ""

    def _does(self, what: str) -> None:
        self.log.append(f"{what} {self.source}")
        if self.fails == what:
            raise Fault("RUNTIME_ERROR", what)

    def take(self) -> None:
        self._does("take")

    def load(self) -> None:
        self._does("load")

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self._does("end")


class Sampler:
    """Calls that are noted."""

    def wake_up(self, arm: Any, seed: int) -> None:
        arm.process._does("call")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []

    class Passage:
        def __init__(self, line: Any, clock: Any, candidate: bool) -> None:
            assert not candidate
            self.process = line.process

        def known(self, kind: int) -> Went:
            if self.process.fails == "known":
                raise NotShared
            noted.append(f"known {self.process.source}")
            return Went(300.0 + kind, 70.0)

    def line(process: Process) -> Any:
        return SimpleNamespace(process=process, close=lambda: noted.append(f"no line {process.source}"))

    monkeypatch.setattr(module, "Passage", Passage)
    monkeypatch.setattr(module, "Line", line)
    monkeypatch.setattr(module, "CandidateProcess", Process)
    return noted


class Made:
    """Pairs, and what is made for them."""

    def __init__(self, stack: ExitStack, log: list[str]) -> None:
        self.log, self.fails = log, ""
        self.made: list[list[Process]] = []
        self.pairs = Pairs(stack, self._make, None, 5.0, Random(1))  # type: ignore[arg-type]
        self.own = [Process("candidate", log), Process("incumbent", log)]

    def _make(self) -> Any:
        made = [Process("candidate", self.log), Process("incumbent", self.log)]
        made[1].fails = self.fails
        self.made.append(made)
        return made


@pytest.fixture
def one(log: list[str]) -> Iterator[Made]:
    with ExitStack() as stack:
        yield Made(stack, log)


def steps(log: list[str]) -> list[str]:
    """What was done, each step once where several came in a row, whatever the process."""
    words = [entry.rsplit(" ", 1)[0] for entry in log]
    return [word for at, word in enumerate(words) if at == 0 or words[at - 1] != word]


def test_our_own_calls_pass_before_the_candidates_are_loaded(one: Made) -> None:
    one.pairs.start(one.own)  # type: ignore[arg-type]
    assert steps(one.log) == ["take", "known", "load"]
    pair = one.pairs.nth(Sampler(), 0)  # type: ignore[arg-type]
    assert pair is not None
    assert pair.known is not None
    assert pair.known.us == 5.0
    assert [[len(kind) for kind in arm] for arm in pair.known.before] == [[9, 9, 9], [9, 9, 9]]
    assert one.made == [], "it is the one that was timed"


def test_another_pair_is_started_once_and_called_on_each_workload(one: Made) -> None:
    one.pairs.start(one.own)  # type: ignore[arg-type]
    one.log.clear()
    first = one.pairs.nth(Sampler(), 1)  # type: ignore[arg-type]
    assert steps(one.log) == ["take", "known", "load", "call"]
    one.log.clear()
    assert one.pairs.nth(Sampler(), 1) is first  # type: ignore[arg-type]
    assert sorted(one.log) == ["call candidate"] * 3 + ["call incumbent"] * 3
    assert len(one.made) == 1


def test_lines_end_before_their_processes(log: list[str]) -> None:
    with ExitStack() as stack:
        one = Made(stack, log)
        one.pairs.start(one.own)  # type: ignore[arg-type]
        one.pairs.nth(Sampler(), 1)  # type: ignore[arg-type]
        log.clear()
    assert steps(log) == ["no line", "end", "no line"]


@pytest.mark.parametrize("what", ["take", "load", "call"])
def test_where_no_other_pair_can_be_had_there_is_none(one: Made, what: str) -> None:
    one.pairs.start(one.own)  # type: ignore[arg-type]
    one.fails = what
    assert one.pairs.nth(Sampler(), 1) is None  # type: ignore[arg-type]


def test_what_our_own_calls_take_is_not_known_where_they_cannot_pass(one: Made) -> None:
    one.own[0].fails = "known"
    one.pairs.start(one.own)  # type: ignore[arg-type]
    pair = one.pairs.nth(Sampler(), 0)  # type: ignore[arg-type]
    assert pair is not None
    assert pair.known is None
    assert steps(one.log)[-1] == "load", "it can be timed all the same"


def test_the_fault_of_a_step_is_that_of_whose_process_it_was(one: Made) -> None:
    one.own[1].fails = "load"
    with pytest.raises(IncumbentFault):
        each(one.own, Process.load)  # type: ignore[arg-type]
    one.own[0].fails = "load"
    with pytest.raises(Fault) as caught:
        each(one.own, Process.load)  # type: ignore[arg-type]
    assert not isinstance(caught.value, IncumbentFault), "the candidate's goes first"
