"""On which core a thread waits; asked of the system, since what it does is what is wanted."""

import os
import threading

import pytest

from kopt_mcp.evaluator import cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")


def test_a_thread_waits_on_one_core_and_goes_back_to_where_it_could_be() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)

    def fails() -> None:
        with cores.waiting_on(core):
            assert os.sched_getaffinity(0) == {core}
            assert cores.current() == core
            raise ValueError("in here")

    with pytest.raises(ValueError, match="in here"):
        fails()
    assert os.sched_getaffinity(0) == before


def test_other_threads_stay_where_they_are() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    go, gone = threading.Event(), threading.Event()

    def other() -> None:
        go.wait(10)
        seen.append(os.sched_getaffinity(0))
        gone.set()

    thread = threading.Thread(target=other)
    thread.start()
    with cores.waiting_on(max(before)):
        go.set()
        gone.wait(10)
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("core", [None, 1 << 14])
def test_where_no_core_is_known_or_it_may_not_be_had_nothing_changes(core: int | None) -> None:
    before = os.sched_getaffinity(0)
    with cores.waiting_on(core):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("here", "allowed", "core", "chosen"),
    [
        (3, {1, 3, 5}, 1, 3),
        (3, {1, 3, 5}, 3, 5),
        (5, {1, 3, 5}, 5, 1),
        (0, {0}, 0, None),
        (None, {0, 1}, 0, None),
        (1, {0, 1}, None, 1),
    ],
)
def test_it_waits_where_it_runs_if_nobody_else_waits_there(
    monkeypatch: pytest.MonkeyPatch, here: int | None, allowed: set[int], core: int | None, chosen: int | None
) -> None:
    monkeypatch.setattr(cores, "current", lambda: here)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    assert cores.apart_from(core) == chosen


def test_a_system_that_does_not_tell_the_core_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "Path", lambda path: Proc("kopt (a thread) S 1"))
    assert cores.current() is None
    monkeypatch.delattr(os, "sched_setaffinity")
    assert cores.current() is None


class Proc:
    """A file in /proc, as short as said."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read_text(self, encoding: str) -> str:
        return self.text
