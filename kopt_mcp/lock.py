"""One step at a time: on a device, and in an experiment. Locks of the system (flock), which die with their holder."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from kopt_mcp.errors import Cancelled, DeviceBusy, GuardRefused, KoptError, WorkspaceFailed
from kopt_mcp.watch import Watch

LOOK_AGAIN_S = 0.2


class Locks:
    """Where the locks are and how long to wait for them.

    Args:
        folder: holds the device locks; must be the same for all servers of one user.
        bound_s: seconds to wait before giving up.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        bound_s: float = 120.0,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder or runtime_folder()
        self._bound_s = bound_s
        self._monotonic = monotonic
        self._sleep = sleep

    @contextmanager
    def device(self, uuid: str, name: str, watch: Watch) -> Iterator[None]:
        """Hold a device.

        Raises:
            DeviceBusy: somebody else held it for too long.
            Cancelled: the caller gave up waiting.
        """
        path = self._folder / f"device-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
        with self._hold(path, f"device {name}", watch, DeviceBusy):
            yield

    @contextmanager
    def experiment(self, folder: Path, watch: Watch) -> Iterator[None]:
        """Be the one writer of an experiment.

        Raises:
            GuardRefused: another call was at work in it for too long.
            Cancelled: the caller gave up waiting.
        """
        with self._hold(folder / ".lock", f"experiment {folder.name!r}", watch, GuardRefused):
            yield

    @contextmanager
    def folder(self, folder: Path, what: str, watch: Watch) -> Iterator[None]:
        """Be the one writer of what several share: the log of all experiments, the user's memory.

        Raises:
            GuardRefused: another call was at work in it for too long.
            Cancelled: the caller gave up waiting.
        """
        with self._hold(folder / ".lock", what, watch, GuardRefused):
            yield

    @contextmanager
    def _hold(self, path: Path, what: str, watch: Watch, refusal: type[KoptError]) -> Iterator[None]:
        with _opened(path) as fd:
            self._wait(fd, what, watch, refusal)
            _sign(fd)
            try:
                yield
            finally:
                os.ftruncate(fd, 0)
                fcntl.flock(fd, fcntl.LOCK_UN)

    def _wait(self, fd: int, what: str, watch: Watch, refusal: type[KoptError]) -> None:
        start = self._monotonic()
        while not taken(fd):
            waited = self._monotonic() - start
            if watch.cancelled:
                raise Cancelled(f"gave up waiting for {what}; nothing ran; call again when it is free.")
            if waited >= self._bound_s:
                raise refusal(
                    f"{what} has been held for {waited:.0f} s by {_owner(fd)}; one step runs at a time; "
                    "wait for it, or end that process."
                )
            watch.progress(0.0, f"waiting for {what}, held by {_owner(fd)}")
            self._sleep(LOOK_AGAIN_S)


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Take a lock if it is free, without waiting; says whether it was."""
    with _opened(path) as fd:
        if not taken(fd):
            yield False
            return
        _sign(fd)
        try:
            yield True
        finally:
            os.ftruncate(fd, 0)
            fcntl.flock(fd, fcntl.LOCK_UN)


def taken(fd: int) -> bool:
    """Try to lock an open file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def runtime_folder() -> Path:
    """The user's folder for locks, made if need be, which no other user can write to.

    Raises:
        WorkspaceFailed: it cannot be made, or belongs to somebody else.
    """
    # Not from the environment: a client starts its servers with little of it, and all of them must meet at one lock.
    session = Path(f"/run/user/{os.getuid()}")
    usable = session.is_dir() and os.access(session, os.W_OK)
    folder = session / "kopt-mcp" if usable else Path(f"/tmp/kopt-mcp-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = folder.lstat().st_uid
    except OSError as error:
        raise WorkspaceFailed(
            f"{folder} for lock files cannot be made: {error.strerror}; make room or set its rights."
        ) from error
    if owner != os.getuid():
        raise WorkspaceFailed(f"{folder} belongs to user {owner}; its locks cannot be trusted; remove it.")
    return folder


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        text = f"the lock {path.name} cannot be opened: {error.strerror}; check the rights of {path.parent.name}/."
        raise WorkspaceFailed(text) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _sign(fd: int) -> None:
    owner = {"pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(owner).encode(), 0)
    except OSError:
        return  # the signature is for messages only; the lock itself is held


def _owner(fd: int) -> str:
    try:
        owner = json.loads(os.pread(fd, 1000, 0))
        return f"process {int(owner['pid'])} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
