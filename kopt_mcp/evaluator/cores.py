"""On which core a thread waits.

Where nothing is said, a process that is waked runs on the core of the one that wakes it, or on another, for as long as
it lives. One takes some 40 us less than the other (on a virtual machine with two cores), which between two processes
that run the same kernel looks like a gain. So they always wait on two cores, and work where they like.
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


def apart_from(core: int | None) -> int | None:
    """Where this thread runs, if it is not on that core, or else another; None where it cannot be chosen."""
    here = current()
    if here is None or core is None or here != core:
        return here
    others = sorted(os.sched_getaffinity(0) - {core})
    return next((other for other in others if other > core), others[0] if others else None)


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
