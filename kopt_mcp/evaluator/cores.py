"""On which core a thread waits.

Where nothing is said, a process that is waked runs on the core of the one that wakes it, or on another, for as long as
it lives. One takes some 40 us less than the other (on a virtual machine with two cores), which between two processes
that run the same kernel looks like a gain. So they always wait on two cores, and work where they like.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_REST_S, _LOOK_S = 0.05, 0.0005
"""Longest wait for other threads to rest, and how long it is from one look to the next."""
_TASKS = Path("/proc/self/task")
_PROCESSOR = 36
"""Where a thread's stat there names the core, counted behind the thread's name."""


def current() -> int | None:
    """The core that this thread runs on; None where that is not told, or cannot be chosen."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    told = _told(_TASKS / str(threading.get_native_id()) / "stat")
    return int(told[_PROCESSOR]) if len(told) > _PROCESSOR else None


def apart_from(core: int | None) -> int | None:
    """Where this thread runs, if it is not on that core, or else another; None where it cannot be chosen."""
    here = current()
    if here is None or core is None or here != core:
        return here
    others = sorted(os.sched_getaffinity(0) - {core})
    return next((other for other in others if other > core), others[0] if others else None)


def rested() -> None:
    """Wait until no other thread of this process is awake.

    Torch's stay so for some 8 ms after each operation that several have shared, waiting for the next.
    """
    latest = time.perf_counter() + _REST_S
    while _awake() and time.perf_counter() < latest:
        time.sleep(_LOOK_S)


def _awake() -> bool:
    """Whether another thread runs, or would like to."""
    others = [task for task in _TASKS.glob("*") if task.name != str(threading.get_native_id())]
    return any(_told(task / "stat")[:1] == ["R"] for task in others)


def _told(stat: Path) -> list[str]:
    """What the system tells of a thread, behind its name; nothing where it tells nothing, or of one that has ended."""
    try:
        return stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


@contextlib.contextmanager
def waiting_on(core: int | None) -> Iterator[None]:
    """This thread stays on that core in here, if it may."""
    before = None if core is None else _moved(core)
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


def _moved(core: int) -> set[int] | None:
    """Where it could be before; None where it may not be there alone."""
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
    except OSError:
        return None
    return before
