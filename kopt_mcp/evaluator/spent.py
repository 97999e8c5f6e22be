"""Where the seconds of an evaluation go, by part."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spent:
    """A stopwatch per part; several threads may run one each, and their seconds add up."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count the time of a block towards `part`, also where it raises."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(part, time.perf_counter() - begin)

    def add(self, part: str, seconds: float) -> None:
        """Count `seconds` towards `part`."""
        with self._lock:
            self._seconds[part] = self._seconds.get(part, 0.0) + seconds

    def rounded(self) -> dict[str, float]:
        """Seconds by part, the longest first."""
        with self._lock:
            parts = sorted(self._seconds.items(), key=lambda item: -item[1])
        return {part: round(seconds, 4) for part, seconds in parts}
