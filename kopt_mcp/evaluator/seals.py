"""Words of a runner's memory that must stay as they were before the candidate came, read from outside.

On a GPU a runner draws inputs, evicts caches and times calls itself. A candidate that puts another function in the
place of one of these need not lie in anything that is compared. So the runner names, before it knows its candidate, the
words that bind its names to its functions and its functions to their code (`sealing`); the harness reads them out of
its memory, then and at moments that nobody in the runner knows. What is looked at is memory: nothing is asked, so
nothing can lie.

What this does not see: machine code that was rewritten, and work done beside code that is as it was.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple

from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.peeking import Memory, Piece, Reader


class Seal(NamedTuple):
    """A piece of memory, and what it would mean if it changed."""

    name: str
    address: int
    size: int


class Seals:
    """What the pieces held when no candidate was there, and whether they still do."""

    def __init__(self, pid: int, seals: Sequence[Seal], reader: Reader | None = None) -> None:
        """Read by the system's own call unless another way is given.

        Raises:
            OSError: the process's memory may not be read.
        """
        self._seals = sorted(seals, key=lambda seal: seal.address)
        self._read = (reader or Memory)(pid, _merged(self._seals))
        self._before = self._read()

    def require_unbroken(self) -> None:
        """Compare, whatever the process is doing.

        Raises:
            Fault: `CHEATED`, the candidate changed the evaluator's own code.
        """
        try:
            now = self._read()
        except OSError as error:
            if error.errno == errno.ESRCH:
                return  # it has ended: whoever waits for its answer says so
            raise Fault("CHEATED", "the candidate moved what the evaluator has in its memory") from None
        if now != self._before:
            raise Fault("CHEATED", f"it changed {self._broken(now)} in the evaluator's own code, in its process")

    def _broken(self, now: bytes) -> str:
        at = end = 0
        for seal in self._seals:
            fresh = max(0, seal.address + seal.size - max(end, seal.address))
            if now[at : at + fresh] != self._before[at : at + fresh]:
                return seal.name
            at, end = at + fresh, max(end, seal.address + seal.size)
        return "something"


def _merged(seals: Sequence[Seal]) -> list[Piece]:
    """The pieces to read, those that touch or overlap as one."""
    pieces: list[Piece] = []
    for _, address, size in seals:
        start, length = pieces[-1] if pieces else (0, 0)
        if pieces and address <= start + length:
            pieces[-1] = (start, max(length, address + size - start))
        else:
            pieces.append((address, size))
    return pieces
