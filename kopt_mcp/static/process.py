"""Runs a compiler or the worker: own process group, private temporary folder, killed on timeout."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KEEP = {
    "PATH",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "CC",
    "CXX",
}
"""What a compiler may need. Everything else stays out of reach of the kernel's code."""


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    code: int | None
    """Exit status, minus the signal's number when it was killed; None when it ran out of time."""
    stdout: str
    stderr: str


def run(command: Sequence[str], *, folder: Path, timeout_s: float, stdin: str = "") -> Finished:
    """Run `command` with `folder` as its working and temporary folder.

    Raises:
        OSError: the program cannot be started.
    """
    (folder / "stdin").write_text(stdin, encoding="utf-8")
    with (
        (folder / "stdin").open("rb") as given,
        (folder / "stdout").open("wb") as stdout,
        (folder / "stderr").open("wb") as stderr,
    ):
        process = subprocess.Popen(
            command,
            stdin=given,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            env=environment(folder),
            start_new_session=True,
        )
        code = _wait(process, timeout_s)
    texts = ((folder / name).read_text(encoding="utf-8", errors="replace") for name in ("stdout", "stderr"))
    return Finished(code, *texts)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also after a good end: a compiler or a child of the kernel's code may still be running.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment(folder: Path) -> dict[str, str]:
    """A small environment: no secrets, no interpreter mode, no GPU, caches under `folder`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEEP or (name.startswith("TRITON_") and name != "TRITON_INTERPRET")
    }
    hidden = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "")
    return {**kept, **hidden, "TMPDIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
