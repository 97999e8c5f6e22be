"""One evaluator, several calls at once: each gets its own answer, and whoever gives up ends only what is its own."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from evaluating import CHEATS, PROBLEMS, digest, running_evaluator

from kopt_mcp.errors import Cancelled
from kopt_mcp.evaluator import sandbox
from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.evaluator.records import Evaluation, Job
from kopt_mcp.watch import Watch

SOFTMAX = PROBLEMS / "softmax.py"
PLAIN = CHEATS / "controls" / "plain.py"


@pytest.fixture(scope="module")
def evaluator() -> Iterator[LocalEvaluator]:
    with running_evaluator() as local:
        yield local


def verify(candidate: Path = PLAIN) -> Job:
    return Job("verify", str(SOFTMAX), digest(SOFTMAX), str(candidate), digest(candidate), "cpu")


class Caller(threading.Thread):
    """A call in a thread of its own; `answer` is what it returned or raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self.answer: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except Exception as error:
            self.answer = error


def once(action: Callable[[], None]) -> Callable[[float, str], None]:
    """Progress at which something is done the first time that the evaluator itself is heard."""
    done: list[str] = []

    def heard(fraction: float, text: str) -> None:
        if text.startswith("checking") and not done:
            done.append(text)
            action()

    return heard


def test_a_call_waits_for_its_turn_and_both_get_their_own_answer(evaluator: LocalEvaluator) -> None:
    waiting = threading.Event()
    others: list[Caller] = []

    def another_comes() -> None:
        watch = Watch(lambda fraction, text: waiting.set() if text.startswith("waiting for the evaluator") else None)
        others.append(Caller(lambda: evaluator.check_problem(SOFTMAX, digest(SOFTMAX), "cpu", watch)))
        assert waiting.wait(60)

    result = evaluator.evaluate(verify(), Watch(once(another_comes)))
    (other,) = others
    other.join()
    assert result.status == "PASSED"
    assert [m.name for m in other.answer if m.name == "zeros" and m.caught] == ["zeros"]


def test_giving_up_after_its_turn_ends_nobody_elses_work(evaluator: LocalEvaluator) -> None:
    mine = Watch()
    evaluator.check_problem(SOFTMAX, digest(SOFTMAX), "cpu", mine)
    assert evaluator.evaluate(verify(), Watch(once(mine.cancel))).status == "PASSED"


def test_giving_up_before_its_turn_ends_nobody_elses_work(evaluator: LocalEvaluator) -> None:
    others: list[Caller] = []

    def another_comes_and_goes() -> None:
        waiting = threading.Event()
        watch = Watch(lambda fraction, text: waiting.set())
        other = Caller(lambda: evaluator.evaluate(verify(), watch))
        assert waiting.wait(60)
        watch.cancel()
        other.join(60)
        others.append(other)

    result: Evaluation = evaluator.evaluate(verify(), Watch(once(another_comes_and_goes)))
    assert result.status == "PASSED"
    assert isinstance(others[0].answer, Cancelled)


def test_giving_up_ends_every_process_of_a_candidate_that_never_returns(
    evaluator: LocalEvaluator, tmp_path: Path
) -> None:
    endless = tmp_path / "endless.py"
    endless.write_text("def softmax(x):\n    while True:\n        pass\n")
    running: list[int] = []

    def give_up() -> None:
        running.extend(os.pidfd_open(pid) for pid in sandbox.descendants(os.getpid()))
        watch.cancel()

    watch = Watch(once(give_up))
    with pytest.raises(Cancelled):
        evaluator.evaluate(verify(endless), watch)
    assert len(running) >= 3  # harness, zygote, runner
    for process in running:
        assert select.select([process], [], [], 60)[0]  # a pidfd can be read once its process has ended
        os.close(process)
    assert evaluator.evaluate(verify(), Watch()).status == "PASSED"
