"""How a long step is followed and given up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watch:
    """How a long step is followed and given up: one per tool call."""

    def __init__(self, on_progress: Callable[[float, str], None] | None = None) -> None:
        self._on_progress = on_progress
        self._on_cancel: list[Callable[[], None]] = []
        self._span = (0.0, 1.0)
        self._lock = threading.RLock()
        self.cancelled = False

    def stage(self, begin: float, end: float, text: str) -> None:
        """A part of the step begins, from one share of it to another; fractions are of this part from here on."""
        self._span = (begin, end)
        self.progress(0.0, text)

    def progress(self, fraction: float, text: str) -> None:
        """Say how far the step, or its present stage, is, 0 to 1, and what it does."""
        if self._on_progress is not None:
            begin, end = self._span
            self._on_progress(begin + (end - begin) * min(max(fraction, 0.0), 1.0), text)

    def on_cancel(self, action: Callable[[], None]) -> None:
        """Run `action` when the call is cancelled; at once if it has been."""
        with self._lock:
            self._on_cancel.append(action)
            if self.cancelled:
                action()

    @contextmanager
    def ending(self, action: Callable[[], None]) -> Iterator[None]:
        """`on_cancel` for as long as the block lasts: what others use after it is not theirs to end."""
        self.on_cancel(action)
        try:
            yield
        finally:
            with self._lock:  # a cancellation that is under way is finished first
                self._on_cancel.remove(action)

    def cancel(self) -> None:
        """Give the step up: its processes are ended, and it raises `Cancelled`."""
        with self._lock:
            self.cancelled = True
            for action in self._on_cancel:
                action()
