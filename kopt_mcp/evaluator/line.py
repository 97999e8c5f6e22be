"""The words in memory by which the harness and one runner's stream tell each other where a call stands.

Some lie in the shared memory, where the runner's stream waits for them and writes them; those that time is taken by are
the harness's own, and the runner cannot reach them.
"""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable

from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.queueing import DONE_AT, GO_AT, Stream

BEGIN_AT, BACK_AT, REST_AT = 0, 64, 128
"""Where words lie that the runner cannot write: from when a call may go, from when the device is wanted back, and when
it has come to rest."""


class Line:
    """One process's words. All its gates share it. Close it."""

    def __init__(self, process: CandidateProcess) -> None:
        """Raises:
        OSError: the device cannot see the shared memory.
        """
        self.process, self.shared = process, process.runner.shared
        self.shared.poke(GO_AT, 0)
        self.shared.poke(DONE_AT, 0)
        self._own = mmap.mmap(-1, mmap.PAGESIZE)
        self.moments = Stream(self._own, 0)
        try:
            self.words = Stream(self.shared.memory)
        except OSError:
            self.moments.close()
            raise
        self._ticket = -1

    def close(self) -> None:
        """No gate is used any more."""
        self.words.close()
        self.moments.close()

    def ticket(self) -> int:
        """What the words hold that are about one call; its successor lets the runner's stream say that it is over."""
        self._ticket += 2
        return self._ticket

    def want_back(self, ticket: int) -> None:
        """The device."""
        self._own[BACK_AT : BACK_AT + 4] = ticket.to_bytes(4, sys.byteorder)

    def when(self, at: int, ticket: int, most_s: float) -> float | None:
        """The moment when a word of the harness's own holds a ticket; None where it never does."""
        return _when(lambda: int.from_bytes(self._own[at : at + 4], sys.byteorder), ticket, most_s)

    def done(self, ticket: int, most_s: float) -> bool:
        """Whether the runner's stream says that it is over."""
        return _when(lambda: self.shared.peek(DONE_AT), ticket, most_s) is not None


def _when(word: Callable[[], int], ticket: int, most_s: float) -> float | None:
    latest = time.perf_counter() + most_s
    while word() != ticket:
        if time.perf_counter() > latest:
            return None
    return time.perf_counter()
