"""How a long step is followed and given up."""

from __future__ import annotations

from collections.abc import Callable


class Watch:
    """How a long step is followed and given up: one per tool call."""

    def __init__(self, on_progress: Callable[[float, str], None] | None = None) -> None:
        self._on_progress = on_progress
        self._on_cancel: list[Callable[[], None]] = []
        self.cancelled = False

    def progress(self, fraction: float, text: str) -> None:
        """Say how far the step is, 0 to 1, and what it does."""
        if self._on_progress is not None:
            self._on_progress(fraction, text)

    def on_cancel(self, action: Callable[[], None]) -> None:
        """Run `action` when the call is cancelled; at once if it has been."""
        self._on_cancel.append(action)
        if self.cancelled:
            action()

    def cancel(self) -> None:
        """Give the step up: its processes are ended, and it raises `Cancelled`."""
        self.cancelled = True
        for action in self._on_cancel:
            action()
