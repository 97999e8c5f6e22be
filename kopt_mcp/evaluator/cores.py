"""On which core a thread waits.

Two processes that wake each other do so about three times as fast on one core as on two (22 us and 65 us, a round trip
on a virtual machine with two cores), and where nothing is said it is one or the other for as long as a process lives: a
difference of a gain's size between two that run the same kernel. So both wait on one core, and work where they like.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROCESSOR = 36
"""Where /proc/thread-self/stat names the core, counted behind the thread's name."""


def current() -> int | None:
    """The core that this thread runs on; None where that is not told, or cannot be chosen."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return int(Path("/proc/thread-self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[_PROCESSOR])
    except (OSError, ValueError, IndexError):
        return None


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
