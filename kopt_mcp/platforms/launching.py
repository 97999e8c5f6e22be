"""Starts what runs a candidate or a compiler: own process group and folder, small environment, killed on timeout."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from kopt_mcp.errors import Cancelled
from kopt_mcp.evaluator import sandbox
from kopt_mcp.platforms.host import Failure, Ran
from kopt_mcp.watch import Watch

KEPT = (
    "PATH",
    "LANG",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)
"""What of our environment the candidate and the profiler get to see; no secrets, no interpreter modes."""
MOST_TEXT = 64 << 20
"""Bytes that are read of any one report."""


class Launch(Protocol):
    """Runs a program in a folder of its own, to its end or to its timeout; raises only `Cancelled`."""

    def __call__(self, argv: Sequence[str], *, folder: Path, timeout_s: float, watch: Watch) -> Ran: ...


def launch(
    argv: Sequence[str], *, folder: Path, timeout_s: float, watch: Watch, env: Mapping[str, str] | None = None
) -> Ran:
    """Run `argv` with `folder` as its working, home, temporary and cache folder; see `Launch`.

    Raises:
        Cancelled: the watch was cancelled; everything that was started has been ended.
    """
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=folder,
                env=environment(folder) if env is None else env,
                start_new_session=True,
            )
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            return Ran(stderr=f"{argv[0]}: {error.strerror}", failure="missing" if missing else "refused")
        watch.on_cancel(lambda: _end(process) if process.poll() is None else None)
        failure: Failure = ""
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            failure = "timeout"
        _end(process)
    if watch.cancelled:
        raise Cancelled("the call was cancelled; the experiment is where it was before it.")
    return Ran(read_text(folder / "stdout"), read_text(folder / "stderr"), process.returncode, failure)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A private folder for one run, gone afterwards with its compile caches."""
    with tempfile.TemporaryDirectory(prefix="kopt-profile-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


def environment(folder: Path) -> dict[str, str]:
    """A small environment whose homes and caches all lie in `folder`."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    cache = folder / "cache"
    cache.mkdir(exist_ok=True)
    return {
        **kept,
        "LC_ALL": "C.UTF-8",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(cache),
        "TRITON_HOME": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TORCH_EXTENSIONS_DIR": str(cache / "extensions"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
    }


def read_text(path: Path) -> str:
    """The text of a report, at most `MOST_TEXT` of it; empty where there is none, or a link or a pipe in its place."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK  # what was run may have put anything there
    with contextlib.suppress(OSError), open(path, "rb", opener=lambda p, f: os.open(p, f | flags)) as file:
        return file.read(MOST_TEXT).decode("utf-8", errors="replace")
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the group and of everything below it."""
    victims = sandbox.descendants(process.pid) if process.poll() is None else []
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for victim in victims:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(victim, signal.SIGKILL)
    process.wait()
