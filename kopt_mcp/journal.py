"""experiments/<id>/journal.jsonl: the one truth about an experiment, appended to and never rewritten.

Every line holds the SHA-256 of the line before. A last line without its newline is a write that never finished: it is
ignored, and cut away by the next append. Anything else that does not verify is refused with its line number.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from kopt_mcp.disk import Disk, digest
from kopt_mcp.errors import JournalCorrupt, WorkspaceFailed
from kopt_mcp.events import Event
from kopt_mcp.models import Record, Tool

FRESH_NS = 100_000_000


class Journal:
    """One experiment's journal. Reading may happen at any time; whoever appends holds the experiment's lock."""

    def __init__(self, path: Path, disk: Disk | None = None, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.path = path
        self._disk = disk or Disk()
        self._now_ns = now_ns
        self._thread = threading.RLock()  # two calls of one server may read at once
        self._raw = b""  # verified already, newline at the end
        self._events: list[Event] = []
        self._last = ""
        self._seen: tuple[int, ...] | None = (
            None  # the file that `_raw` was read from, where it surely is still the same
        )

    def read(self) -> list[Event]:
        """All whole events.

        Raises:
            JournalCorrupt: a line is damaged or the chain of hashes is broken.
            WorkspaceFailed: the file cannot be read.
        """
        with self._thread:
            seen = self._identity()
            if seen is None or seen != self._seen:
                self._read_anew()
                self._seen = seen
            return list(self._events)

    def append(self, tool: Tool, outcome: Literal["ok", "refused", "failed"], data: Record, now: float) -> Event:
        """Write one event down; when this returns, it is on the disk.

        Args:
            now: seconds since the epoch, for the reader only: order is by number.

        Raises:
            WorkspaceFailed: the disk is full or may not be written; the journal is as before.
        """
        with self._thread:
            number = len(self.read())
            event = Event(
                n=number,
                time=datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
                tool=tool,
                outcome=outcome,
                data=data.model_dump(mode="json"),
                prev=self._last,
            )
            line = json.dumps(event.model_dump(mode="json"), separators=(",", ":"), ensure_ascii=False).encode(
                errors="replace"
            )
            self._disk.append(self.path, line + b"\n", at=len(self._raw))
            self._raw += line + b"\n"
            self._events.append(event)
            self._last = digest(line)
            self._seen = None
            return event

    def _read_anew(self) -> None:
        """Read the whole file; what was verified before is compared byte by byte, what is new is verified."""
        data = self._load()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole.startswith(self._raw):
            self._raw, self._events, self._last = b"", [], ""
        events, last = list(self._events), self._last
        for line in whole[len(self._raw) :].split(b"\n")[:-1]:
            events.append(self._check(line, len(events), last))
            last = digest(line)
        self._raw, self._events, self._last = whole, events, last

    def _identity(self) -> tuple[int, ...] | None:
        """Which file it is, how long, and when it was changed; None while that is too fresh to tell a second change."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        # The system's time stamps move in steps of up to 10 ms: two changes within one look like one.
        if abs(self._now_ns() - found.st_ctime_ns) < FRESH_NS:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _load(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise WorkspaceFailed(
                f"the journal {self.path.name} cannot be read: {error.strerror}; check its rights."
            ) from error

    def _check(self, line: bytes, number: int, last: str) -> Event:
        try:
            event = Event.model_validate_json(line)
        except ValidationError as error:
            raise JournalCorrupt(self._refusal(number, "it is not an event")) from error
        if event.n != number:
            raise JournalCorrupt(self._refusal(number, f"it is event {event.n} where {number} belongs"))
        if event.prev != last:
            raise JournalCorrupt(self._refusal(number, "it does not follow the line before it"))
        return event

    def _refusal(self, number: int, why: str) -> str:
        where = f"{self.path.parent.name}/{self.path.name}"
        return (
            f"{where} line {number + 1} does not verify: {why}; the journal was edited or the disk is damaged; restore "
            "it from version control or a backup, or start a new baseline (nothing is re-initialised)."
        )


def verify(path: Path) -> int:
    """Check every line and the chain; returns the number of events.

    Raises:
        JournalCorrupt: with the number of the first line that does not verify.
    """
    return len(Journal(path).read())
