"""Whether a runner comes back to its own loop after each answer, on the line that it was given.

A candidate that never returns can answer in the runner's stead, with the runner's own code left as it is: what gives it
away is where its thread stands between two requests. One that puts itself between the runner and its line needs the
line's other name in its process.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.peeking import Memory, Unreadable, own_memory

_WORD = 8
_HEAD_BYTES = 64
"""Of a call's record on the interpreter's stack, what holds the pointer to its code."""
_BACK_S = 2.0
"""Longest time for coming back: microseconds, but on a busy machine a process must be scheduled first."""


class Standing(NamedTuple):
    """A word of memory, and what it holds while the runner waits for a request."""

    address: int
    value: int


def standing(frame: FrameType, waiting: CodeType) -> Standing | None:
    """Of a call that is made where the runner also waits: the word that says what is being called there.

    None where an interpreter keeps its calls in another way.
    """
    memory = own_memory(id(frame), frame.__sizeof__())
    code = struct.pack("@P", id(frame.f_code))
    for at in range(2 * _WORD, len(memory) - _WORD + 1, _WORD):
        address = int.from_bytes(memory[at : at + _WORD], sys.byteorder)
        try:
            found = own_memory(address, _HEAD_BYTES).find(code) if address % _WORD == 0 else -1
        except Unreadable:
            continue  # no pointer
        if found >= 0 and found % _WORD == 0:
            return Standing(address + found, id(waiting))
    return None


class Loop:
    """The harness's side."""

    def __init__(
        self,
        pid: int,
        where: Standing | None,
        line: int,
        read: Callable[[int], bytes] | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        """`line` is the number of the socket that the runner was given.

        Raises:
            OSError: the process may not be looked at.
        """
        self._where, self._wanted = where, f"socket:[{line}]"
        self._folder = proc / str(pid) / "fd"
        self._read = read
        if where is not None and read is None:
            memory = Memory(pid, [(where.address, _WORD)])
            self._read = lambda _: memory()
        self._names = self._of_line()

    def require_back(self) -> None:
        """See that it waits for the next request.

        Raises:
            Fault: `CHEATED`, it goes on in something else.
        """
        if self._where is None or self._read is None:
            return
        deadline = time.monotonic() + _BACK_S
        while self._standing(self._read) != self._where.value:
            if time.monotonic() > deadline:
                raise Fault("CHEATED", "a call of the candidate never came back, and the runner's answers went on")
            time.sleep(0.0005)

    def require_line(self) -> None:
        """See that nothing has come between.

        Raises:
            Fault: `CHEATED`, the line has another name there than it had.
        """
        try:
            names = self._of_line()
        except OSError:
            return  # it has ended: whoever waits for its answer says so
        if names != self._names:
            raise Fault("CHEATED", "the candidate's process moved the socket on which the runner answers")

    def _standing(self, read: Callable[[int], bytes]) -> int:
        assert self._where is not None
        try:
            return int.from_bytes(read(self._where.address), sys.byteorder)
        except OSError:
            return self._where.value  # it has ended

    def _of_line(self) -> list[int]:
        """The numbers by which the process has the line."""
        return sorted(int(entry.name) for entry in self._folder.iterdir() if _points_to(entry) == self._wanted)


def _points_to(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except OSError:  # closed in the meantime
        return ""
