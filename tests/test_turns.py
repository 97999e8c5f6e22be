"""Whose turn it is: who runs, who is stopped, and what becomes of processes that somebody left behind."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kopt_mcp.evaluator import sandbox, turns
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.turns import Turn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells who is stopped")

PARENT = """
import os, signal, sys
def child():
    if (pid := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            signal.pause()
        signal.pause()
    return pid
print(*[child() for _ in range(int(sys.argv[1]))], flush=True)
signal.pause()
"""
"""Stands for a zygote: children with a child each."""


@pytest.fixture
def family() -> Iterator[tuple[int, list[int]]]:
    """A process with three children, each the leader of its own group with one child."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, "3"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(p) for p in parent.stdout.readline().split()]
    while not all(below(p) for p in children):
        pass
    yield parent.pid, children
    for pid in children:
        os.killpg(pid, signal.SIGKILL)
    parent.stdout.close()
    parent.kill()
    parent.wait()


def turn_of(zygote: int, *runners: int) -> Turn:
    """Runners that are ready."""
    turn = Turn(zygote)
    for runner in runners:
        turn.starts(runner)
        turn.ready(runner)
        turn.holds(runner)
    return turn


def below(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid: int) -> str:
    """T when it is stopped; the kernel may need a moment to get there."""
    for _ in range(10_000):
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if letter != "R":
            return letter
    return "R"


def test_taking_a_turn_stops_the_others_with_all_that_they_started(family: tuple[int, list[int]]) -> None:
    zygote, (one, two, orphan) = family
    turn = turn_of(zygote, one, two)
    assert turn.take(one)
    assert not turn.take(one), "it was its turn already"
    assert [state(p) for p in (one, *below(one))] == ["S", "S"]
    assert [state(p) for p in (two, *below(two))] == ["T", "T"]
    assert state(orphan) == "T", "what is no runner is somebody's leftover"
    assert turn.take(two)
    assert [state(p) for p in (one, two, *below(two))] == ["T", "S", "S"]


def test_an_orphan_that_was_woken_is_found_out_and_stopped_again(family: tuple[int, list[int]]) -> None:
    zygote, (one, two, orphan) = family
    turn = turn_of(zygote, one, two)
    turn.take(one)
    os.kill(orphan, signal.SIGCONT)
    with pytest.raises(Fault, match="though it had been stopped"):
        turn.take(two)
    assert state(orphan) == "T"


@pytest.mark.parametrize("taken", [0, 1])
def test_a_runner_that_was_woken_in_anothers_turn_is_found_out_at_the_next(
    family: tuple[int, list[int]], taken: int
) -> None:
    zygote, runners = family
    turn = turn_of(zygote, *runners)
    turn.take(runners[2])
    woken = runners[0]
    os.kill(woken, signal.SIGCONT)
    assert state(woken) == "S"
    os.kill(woken, signal.SIGSTOP)
    assert state(woken) == "T"
    with pytest.raises(Fault, match="though it had been stopped"):
        turn.take(runners[taken])


def test_a_runner_is_not_stopped_while_it_starts_or_ends(family: tuple[int, list[int]]) -> None:
    zygote, (one, two, three) = family
    turn = turn_of(zygote, one, two)
    turn.starts(three)
    turn.leaves(two)
    turn.take(one)
    assert [state(p) for p in (one, two, three)] == ["S", "S", "S"]
    turn.ready(three)
    turn.take(one)
    assert [state(p) for p in (one, two, three)] == ["S", "S", "T"]


def test_a_runner_that_was_stopped_as_an_orphan_before_it_was_known_goes_on(family: tuple[int, list[int]]) -> None:
    zygote, (one, two, forked) = family
    turn = turn_of(zygote, one, two)
    turn.take(one)
    assert state(forked) == "T", "another thread takes a turn right behind the fork"
    turn.starts(forked)
    assert [state(p) for p in (forked, *below(forked))] == ["S", "S"]
    turn.take(two)
    assert state(forked) == "S"


def test_shared_turns_run_side_by_side(family: tuple[int, list[int]]) -> None:
    zygote, (one, two, _) = family
    turn = turn_of(zygote, one, two)
    turn.take(one)
    turn.share(two)
    assert [state(one), state(two)] == ["S", "S"]
    turn.ended(two)
    assert not turn.take(one), "the other one is gone"


def test_all_with_a_candidate_rest_while_others_without_one_go_on(family: tuple[int, list[int]]) -> None:
    zygote, (one, two, fresh) = family
    turn = turn_of(zygote, one, two)
    turn.starts(fresh)
    turn.ready(fresh)
    turn.share(one)
    turn.rest()
    assert [state(pid) for pid in (one, *below(one), two, *below(two))] == ["T"] * 4
    assert state(fresh) == "S"
    turn.share(fresh)
    assert [state(one), state(fresh)] == ["T", "S"]
    turn.take(one)
    assert [state(one), state(two), state(fresh)] == ["S", "T", "T"]


def test_frozen_means_all_and_released_means_one(family: tuple[int, list[int]]) -> None:
    zygote, (one, two, _) = family
    turn = turn_of(zygote, one, two)
    strays = turn.freeze(one)
    everybody = [one, *below(one), two, *below(two)]
    assert {state(p) for p in everybody} == {"T"}
    assert strays == []
    turn.release(one, strays)
    assert [state(p) for p in everybody] == ["S", "S", "T", "T"]
    turn.halt(one)
    assert [state(p) for p in (one, two)] == ["T", "T"]
    turn.release(one, strays)
    os.kill(two, signal.SIGCONT)
    turn.halt(one, [two])
    assert [state(p) for p in (one, two)] == ["T", "T"]


def test_a_process_that_starts_another_and_ends_while_it_is_looked_at_is_no_rest(
    family: tuple[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote, (one, *_) = family
    gone, true = 1 << 22, sandbox.children
    looks = iter([[], [gone], [gone + 1], [gone + 1], [gone + 2]])  # each had ended by the time its state was read
    monkeypatch.setattr(sandbox, "children", lambda pid: next(looks, []) if pid == zygote else true(pid))
    turn = turn_of(zygote, one)
    for pid in (one, *below(one)):
        os.kill(pid, signal.SIGSTOP)
        assert state(pid) == "T"
    turn.freeze(one)
    assert next(looks) == [gone + 2], "it looks until it has found the same twice, and no longer"


def test_a_process_that_has_gone_by_the_time_of_the_release_does_no_harm(
    family: tuple[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote, (one, two, _) = family
    gone, true = 1 << 22, sandbox.descendants
    monkeypatch.setattr(sandbox, "descendants", lambda pid: [*true(pid), *([gone] if pid == one else [])])
    turn = turn_of(zygote, one, two)
    strays = turn.freeze(one)
    assert strays == [gone], "it is in no group of the runner's any more"
    turn.halt(one, strays)
    turn.release(one, strays)
    assert [state(p) for p in (one, *below(one), two)] == ["S", "S", "T"]


BUSY_PARENT = """
import subprocess, sys, threading
def run():
    while True:
        subprocess.run(["/bin/true"], check=False)
for _ in range(4):
    threading.Thread(target=run).start()
print("ready", flush=True)
"""
"""Waits, most of the time, for a child to become another program: nobody can stop it before the child has."""


def test_who_waits_for_a_stopped_child_to_become_a_program_comes_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_STOP_S", 5.0)
    script = f"import os, sys\nif os.fork() == 0:\n    os.setsid()\n    exec({BUSY_PARENT!r})\nelse: os.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as zygote:
        assert zygote.stdout is not None
        assert zygote.stdout.readline() == "ready\n"
        (runner,) = below(zygote.pid)
        turn = turn_of(zygote.pid, runner)
        try:
            for _ in range(10):
                turn.release(runner, turn.freeze(runner))
        finally:
            os.killpg(runner, signal.SIGKILL)


def test_what_is_woken_while_all_rest_is_found_out(family: tuple[int, list[int]]) -> None:
    zygote, (one, two, _) = family
    for woken in (one, *below(two)):
        turn = turn_of(zygote, one, two)
        turn.freeze(one)
        turn.require_rest()
        os.kill(woken, signal.SIGCONT)  # as a timer of its own would, whose signal that is
        assert state(woken) == "S"
        os.kill(woken, signal.SIGSTOP)
        assert state(woken) == "T", "it rests again by the time that somebody looks"
        with pytest.raises(Fault, match="though it had been stopped"):
            turn.require_rest()


def test_another_runner_that_is_woken_during_a_call_is_found_out_after_it(family: tuple[int, list[int]]) -> None:
    zygote, (one, two, _) = family
    turn = turn_of(zygote, one, two)
    turn.release(one, turn.freeze(one))
    turn.release(one, turn.freeze(one))
    os.kill(two, signal.SIGCONT)
    with pytest.raises(Fault, match="though it had been stopped"):
        turn.freeze(one)


def test_what_is_stopped_for_its_tracer_is_not_at_rest(
    family: tuple[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote, (one, *_) = family
    libc = ctypes.CDLL(None, use_errno=True)
    monkeypatch.setattr(turns, "_STOP_S", 0.05)
    assert libc.ptrace(16, one, None, None) == 0, os.strerror(ctypes.get_errno())  # PTRACE_ATTACH
    os.waitpid(one, 0)
    with pytest.raises(Fault, match="cannot be stopped"):
        turn_of(zygote, one).freeze(one)
    libc.ptrace(17, one, None, None)  # PTRACE_DETACH
