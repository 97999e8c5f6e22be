"""On which core a thread waits; asked of the system, since what it does is what is wanted."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace

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


def test_a_system_that_does_not_tell_the_core_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "_TASKS", tmp_path)
    assert cores.current() is None
    monkeypatch.delattr(os, "sched_setaffinity")
    assert cores.current() is None


@pytest.mark.parametrize(("states", "looks"), [("", 0), ("SS", 0), ("SR", 3)])
def test_it_waits_until_all_other_threads_sleep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, states: str, looks: int
) -> None:
    """They fall asleep at the third look; the caller itself is always awake."""
    slept: list[float] = []

    def sleeps(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            put("S" * len(states))

    def put(now: str) -> None:
        for number, state in enumerate([*now, "R"]):
            name = str(threading.get_native_id() if number == len(now) else -1 - number)
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "stat").write_text(f"{name} (a) thread) {state} 1", encoding="utf-8")

    put(states)
    monkeypatch.setattr(cores, "_TASKS", tmp_path)
    monkeypatch.setattr(cores, "time", SimpleNamespace(perf_counter=lambda: 0.001 * len(slept), sleep=sleeps))
    cores.rested()
    assert len(slept) == looks


def test_threads_that_never_sleep_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(cores, "_awake", lambda: True)
    monkeypatch.setattr(cores, "time", SimpleNamespace(perf_counter=lambda: 0.01 * len(slept), sleep=slept.append))
    cores.rested()
    assert 0 < len(slept) <= 6
