"""What the server works on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from kopt_mcp.loop import Loop


class Workplace(Protocol):
    """One project: `kopt_mcp.project.Project`, or a test's."""

    @property
    def root(self) -> Path: ...

    @property
    def loop(self) -> Loop:
        """Made at the first call of a tool: a client that only lists the tools does not wait for it."""


@dataclass(frozen=True)
class App:
    """What a request may need besides the tools: the lifespan's context."""

    place: Workplace
    steps: anyio.CapacityLimiter
    """How many steps may run or wait at once; the rest queue up, and what only reads passes them by."""
