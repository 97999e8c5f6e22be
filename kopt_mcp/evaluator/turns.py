"""Whose turn it is: every other runner is stopped, so that none can slow down the one that is being timed.

What is stopped need not stay so: a timer of its own, whose signal is SIGCONT, has the kernel wake it. So it is noted
how often each thread has run when all are at rest, and none may have run more when they are let go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence

from kopt_mcp.evaluator import sandbox
from kopt_mcp.evaluator.faults import Fault

_STOP_S = 10.0
"""Longest time that stopping a process may take. A signal arrives within microseconds on an idle machine; on a busy one
the process must be scheduled first, and nobody is to be accused of that."""
_WOKEN = "one of the candidate's processes went on, though it had been stopped"


class Turn:
    """Which of a zygote's runners may run. Each is named by its process id."""

    def __init__(self, zygote: int) -> None:
        self.zygote = zygote
        self._lock = threading.Lock()
        self._runners: set[int] = set()
        self._used: set[int] = set()
        """Those in which a candidate is; the others do nothing but wait."""
        self._running: set[int] = set()
        self._resting: dict[int, Activity] = {}
        """What those processes had done that were found at rest, and have not been woken by us."""
        self._others: dict[int, Activity] = {}
        """The same without those of the runner for which all were stopped."""

    def starts(self, pid: int) -> None:
        """A runner has been forked. It is not stopped until it is ready: somebody waits for that.

        Between the fork and this it looks like an orphan, and may have been stopped as one.
        """
        with self._lock:
            self._runners.add(pid)
            self._wake(pid)

    def ready(self, pid: int) -> None:
        """A runner has nothing more to do for its start."""
        with self._lock:
            self._running.add(pid)

    def holds(self, pid: int) -> None:
        """A runner is to get a candidate."""
        with self._lock:
            self._used.add(pid)

    def leaves(self, pid: int) -> None:
        """A runner is about to end, and must not be stopped on its way."""
        with self._lock:
            self._running.discard(pid)
            self._used.discard(pid)
            self._wake(pid)

    def ended(self, pid: int) -> None:
        """A runner is gone."""
        with self._lock:
            for runners in (self._runners, self._used, self._running):
                runners.discard(pid)
            self._resting.pop(pid, None)

    def take(self, pid: int) -> bool:
        """Let the runner `pid` go on, and stop all others and whatever they started; false if it was so already.

        Raises:
            Fault: `CHEATED`, it was to be at rest until now and was not, or another goes on running.
        """
        with self._lock:
            if self._running == {pid}:
                return False
            self._require_rest(pid, *sandbox.descendants(pid))
            self._stop(self._running - {pid})
            if pid not in self._running:
                self._wake(pid)
            self._running = {pid}
            self._resting = self._found_at_rest(self._used - {pid})
            return True

    def rest(self) -> None:
        """Stop all in which a candidate is, and whatever they started, until it is one's turn again.

        Raises:
            Fault: `CHEATED`, see `take`.
        """
        with self._lock:
            self._stop(self._running & self._used)
            self._running -= self._used
            self._resting = self._found_at_rest(self._used)

    def share(self, pid: int) -> None:
        """Let the runner `pid` go on beside the others, where nothing is being timed."""
        with self._lock:
            if pid not in self._running:
                self._wake(pid)
            self._running.add(pid)

    def freeze(self, pid: int) -> list[int]:
        """Stop every runner and whatever they started, and see that they have stopped.

        Returns:
            Processes of the runner `pid` that left its process group, for `release`.

        Raises:
            Fault: `CHEATED`, something goes on running, or was to be at rest and was not.
        """
        with self._lock:
            self._stop(self._running)
            self._running = set()
            self._resting = found = self._found_at_rest(self._used | {pid})
            own = sandbox.descendants(pid)
            self._others = {one: then for one, then in found.items() if one not in (pid, *own)}
        return [one for one in own if _group(one) != pid]

    def require_rest(self) -> None:
        """See that nothing has run since all were stopped.

        Raises:
            Fault: `CHEATED`.
        """
        with self._lock:
            self._require_rest(*self._resting)

    def _require_rest(self, *pids: int) -> None:
        resting = [pid for pid in pids if pid in self._resting]
        if any(_activity(pid) not in (self._resting[pid], ()) for pid in resting):
            raise Fault("CHEATED", _WOKEN)

    def _found_at_rest(self, runners: set[int]) -> dict[int, Activity]:
        """What these, and what they or others have started, had done when they came to rest.

        Raises:
            Fault: `CHEATED`, one goes on, or went on after it had come to rest.
        """
        found = self._wait_until_all_rest(runners)
        self._require_rest(*self._resting)
        living = {pid: then for pid, then in self._resting.items() if os.path.exists(f"/proc/{pid}")}
        return {**living, **found}

    def _wait_until_all_rest(self, runners: set[int]) -> dict[int, Activity]:
        """Stop what still moves until two looks in a row find the same processes, and all of them at rest; those that
        were found at rest before are left out.

        One look is not enough: while it is taken, a process may start another where it has been looked already, and
        end. What rested at the first of two looks cannot have started what the second would miss.
        """
        deadline = time.monotonic() + _STOP_S
        before: dict[int, Activity] | None = None
        while True:
            roots = (runners | self._orphans()) - self._resting.keys()
            found = {pid: _activity(pid) for root in roots for pid in (root, *sandbox.descendants(root))}
            moving = [pid for pid, threads in found.items() if not _at_rest(threads)]
            if not moving and found == before:
                return found
            if time.monotonic() > deadline:
                raise Fault("CHEATED", f"{max(1, len(moving))} of the candidate's processes cannot be stopped")
            for pid in moving:
                _signal(pid, signal.SIGSTOP)
                if any(state == "D" for state, _ in found[pid]):  # perhaps for a child to become a program
                    for child in sandbox.children(pid):
                        _signal(child, signal.SIGCONT)
            before = None if moving else found

    def halt(self, pid: int, strays: Sequence[int] = ()) -> None:
        """Stop a runner's process group at once, and those that left it; `freeze` sees to the rest."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGSTOP)
        for stray in strays:
            _signal(stray, signal.SIGSTOP)

    def release(self, pid: int, strays: Sequence[int]) -> None:
        """Let one frozen runner go on, its own process group first and at once: this is within the time of a call."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGCONT)
        for stray in strays:
            _signal(stray, signal.SIGCONT)
        with self._lock:
            self._running, self._resting = {pid}, self._others

    def _wake(self, pid: int) -> None:
        """Let a runner and what it started go on."""
        for one in [pid, *sandbox.descendants(pid)]:
            for noted in (self._resting, self._others):
                noted.pop(one, None)
            _signal(one, signal.SIGCONT)

    def _stop(self, running: set[int]) -> None:
        """Stop these runners and what became of others' children: an orphan may have been woken by anybody."""
        for root in running | self._orphans():
            self.halt(root)  # all of its group at once: one by one, a process may start another before its turn comes
            for pid in [root, *sandbox.descendants(root)]:
                _signal(pid, signal.SIGSTOP)

    def _orphans(self) -> set[int]:
        """What a candidate has started and left; it is the zygote's now."""
        return {pid for pid in sandbox.children(self.zygote) if pid not in self._runners}


Activity = tuple[tuple[str, str], ...]
"""Of each thread of a process, its state and how often it was given a core and gave it up."""


def _activity(pid: int) -> Activity:
    """Empty for a process that is gone."""
    try:
        return tuple(_thread(f"/proc/{pid}/task/{task}/status") for task in sorted(os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return ()


def _thread(path: str) -> tuple[str, str]:
    status = sandbox.text_of(path)
    return status[status.index("State:") + 7], status[status.index("voluntary_ctxt_switches:") :]


def _at_rest(threads: Activity) -> bool:
    """Whether no thread of a process runs; a process that is gone or ending does not run either.

    One that is stopped for its tracer (`t`) counts as running: the tracer may have taken our signal away from it.
    """
    return all(state in "TZX" for state, _ in threads)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _signal(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, what)
