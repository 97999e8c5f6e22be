"""The system calls that change a file, one method each, and the two safe ways to write that are built from them.

Everything of ours that writes goes through here, so that a test can stop the world before any single call.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kopt_mcp.errors import WorkspaceFailed


class Disk:
    """Durable writes. Every public method raises `WorkspaceFailed` when the system refuses."""

    def replace(self, path: Path, data: bytes, mode: int | None = None) -> None:
        """Put `data` at `path` so that a reader, and a crash, see either the old file or the new one.

        Args:
            mode: permission bits; those of the file that is replaced, or 0644, when absent.
        """
        # Always the same name, so that a crash leaves at most one stray file, which the next write takes over.
        temporary = path.with_name(f".{path.name}.kopt-new")
        with _explained(path):
            bits = mode if mode is not None else _mode(path)
            try:
                with self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
                    self._write(fd, data)
                    self._chmod(fd, bits)
                    self._sync(fd)
                self._rename(temporary, path)
                self._sync_folder(path.parent)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise

    def append(self, path: Path, data: bytes, at: int) -> None:
        """Cut `path` at byte `at`, and write `data` there; on failure the file ends at `at`."""
        with _explained(path):
            created = not path.exists()
            with self._open(path, os.O_WRONLY | os.O_CREAT) as fd:
                try:
                    self._truncate(fd, at)
                    os.lseek(fd, at, os.SEEK_SET)
                    self._write(fd, data)
                    self._sync(fd)
                except OSError:
                    os.ftruncate(fd, at)
                    raise
            if created:
                self._sync_folder(path.parent)

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents, where they are missing."""
        with _explained(path):
            if path.is_dir():
                return
            self.make_folder(path.parent)
            self._mkdir(path)
            self._sync_folder(path.parent)

    def remove_folder(self, path: Path) -> None:
        """Take a folder and all in it away; what cannot be removed stays."""
        for inner in sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else ():
            if inner.is_dir() and not inner.is_symlink():
                self.remove_folder(inner)
            else:
                self._remove(inner)
        self._remove(path)

    @contextmanager
    def _open(self, path: Path, flags: int) -> Iterator[int]:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            yield fd
        finally:
            os.close(fd)

    def _write(self, fd: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]

    def _truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def _sync(self, fd: int) -> None:
        os.fsync(fd)

    def _chmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def _rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def _mkdir(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()

    def _sync_folder(self, path: Path) -> None:
        with self._open(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            self._sync(fd)


def digest(data: bytes) -> str:
    """SHA-256 in hex, by which every version of a file is named."""
    return hashlib.sha256(data).hexdigest()


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777 if path.exists() else 0o644


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceFailed(
            f"{path.name} could not be written: {error.strerror}; it is as it was, and nothing is lost; make room or "
            f"set the rights of {path.parent.name}/, then call again."
        ) from error
