"""The machine as detection sees it: commands, files, environment. Everything outside the process goes through here."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Failure = Literal["", "missing", "timeout", "refused"]

_SYS_ADMIN = 1 << 21


@dataclass(frozen=True)
class Ran:
    """What became of a command. `failure` is empty when it ran to its end, whatever its exit status."""

    stdout: str = ""
    stderr: str = ""
    returncode: int | None = None
    failure: Failure = ""

    @property
    def ok(self) -> bool:
        """Ran to its end with status 0."""
        return self.returncode == 0

    @property
    def reason(self) -> str:
        """Why it is not ok, in a few words: the failure, or the last line the command wrote."""
        lines = f"{self.stdout}\n{self.stderr}".strip().splitlines()
        return self.failure or (lines[-1].strip() if lines else f"exit status {self.returncode}")


def leading_number(text: object) -> float | None:
    """The number that a value begins with, whatever unit follows; None for `N/A` and its kin."""
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)", str(text))
    return float(found[1]) if found else None


def leading_integer(text: object) -> int | None:
    """The same, without its fraction."""
    number = leading_number(text)
    return None if number is None else int(number)


class Run(Protocol):
    """Runs a command to its end and says what happened; never raises."""

    def __call__(self, argv: Sequence[str], timeout_s: float = 20.0) -> Ran: ...


def run_command(argv: Sequence[str], timeout_s: float = 20.0) -> Ran:
    """The one place of detection where a process is started: no stdin, C locale, killed after `timeout_s` seconds."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return Ran(failure="timeout")
    except FileNotFoundError:
        return Ran(failure="missing")
    except OSError as error:
        return Ran(stderr=str(error), failure="refused")
    return Ran(done.stdout, done.stderr, done.returncode)


@dataclass(frozen=True)
class Host:
    """One machine. Tests give a folder as `root`, recorded answers as `run` and a small `env`."""

    run: Run = run_command
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    system: str = field(default_factory=platform.system)
    machine: str = field(default_factory=platform.machine)
    euid: int = field(default_factory=os.geteuid)

    def read(self, path: str) -> str | None:
        """The text of an absolute path, None when it is absent or may not be read."""
        try:
            return self._at(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def glob(self, pattern: str) -> list[str]:
        """Absolute paths that match an absolute pattern, numbers in them in numeric order."""
        try:
            found = ["/" + path.relative_to(self.root).as_posix() for path in self.root.glob(pattern.lstrip("/"))]
        except OSError:
            return []
        return sorted(
            found, key=lambda path: [int(part) if part.isdigit() else -1 for part in re.split(r"(\d+)", path)]
        )

    def which(self, program: str, *folders: str) -> str | None:
        """Where an executable is: on PATH first, then in `folders`, which may be patterns: the highest version wins."""
        search = [folder for folder in self.env.get("PATH", "").split(os.pathsep) if folder.startswith("/")]
        places = [self._at(folder) for folder in search]
        places += [self._at(path) for folder in folders for path in reversed(self.glob(folder))]
        found = shutil.which(program, path=os.pathsep.join(str(place) for place in places)) if places else None
        return "/" + Path(found).relative_to(self.root).as_posix() if found else None

    def is_admin(self) -> bool:
        """Whether this process has CAP_SYS_ADMIN: root in a container usually has not. Without /proc, root."""
        status = self.read("/proc/self/status") or ""
        if effective := re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE):
            return bool(int(effective[1], 16) & _SYS_ADMIN)
        return self.euid == 0

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")
