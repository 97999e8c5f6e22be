"""From a fork of the zygote to a runner: nothing of its parents left open, shut in, its name hidden, then serving."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import tempfile
import traceback
from itertools import pairwise
from typing import Any, NoReturn

from kopt_mcp.evaluator import sandbox
from kopt_mcp.evaluator.channel import Channel, ChannelClosed


def become_runner(job: dict[str, Any], fds: list[int], asked_by: socket.socket) -> NoReturn:
    """In the fork: shut in, then serve. What the zygote was asked by is for the zygote only."""
    status = 1
    try:
        asked_by.close()
        channel_fd, log_fd, shared_fd = fds
        _leave_behind(job, log_fd, channel_fd, shared_fd)
        isolation = _shut_in(job)
        if isolation.get("processes") == "hidden":
            _go_below()
        _answer(job, channel_fd, shared_fd, isolation)
        status = 0
    except ChannelClosed:
        status = 0
    except BaseException:
        traceback.print_exc()  # into the log of the runner, whose end is shown where it does not start
    finally:
        os._exit(status)


def _leave_behind(job: dict[str, Any], log_fd: int, *keep: int) -> None:
    """What the parents have open, where they are, and what they are called by."""
    os.setsid()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    for name, fd in (("stdout", 1), ("stderr", 2)):  # the parent's may be a file that is closed below
        stream = open(fd, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    close_all_but(*keep)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.path[:] = [p for p in sys.path if p not in ("", ".")]
    random.seed()
    tempfile.tempdir = None  # found anew, from this process's own TMPDIR


def _shut_in(job: dict[str, Any]) -> dict[str, str]:
    """What is in force, see `sandbox.restrict`."""
    sandbox.go_first()
    limits = sandbox.Limits(cpu_s=job["cpu_s"])
    gpu, hidden = job["gpu"], job["hide_processes"]
    return sandbox.restrict(job["readable"], job["writable"], limits, hidden, gpu_nodes=gpu["nodes"])


def _go_below() -> None:
    """Go on in the new process namespace; the two processes above end as the runner ends, and all in it with them.

    The first process of a namespace is deaf to signals that it has no handler for, so that a runner in its place could
    not even abort: it only waits for the runner, which is the second. Neither lets its memory be written: who did that
    would act outside the namespace, in the name of the process above it.
    """
    reading, writing = os.pipe()
    first = os.fork()
    (_stand_above if first else _be_first)(first, reading, writing)


def _stand_above(first: int, reading: int, writing: int) -> None:
    """Outside the namespace: end as the runner in it has ended."""
    del writing  # closed below with all the others
    sandbox.hide_memory()
    os.closerange(3, reading)
    os.closerange(reading + 1, 4096)
    os.waitpid(first, 0)
    end_like(int(os.read(reading, 16) or b"9"))


def _be_first(_: int, reading: int, writing: int) -> None:
    """In the namespace: start the runner, and say above how it has ended."""
    sandbox.die_with_parent()
    os.close(reading)
    runner = os.fork()
    (_stand_between if runner else _be_runner)(runner, writing)


def _stand_between(runner: int, writing: int) -> None:
    sandbox.hide_memory()
    os.closerange(3, writing)
    os.closerange(writing + 1, 4096)
    status = None
    while status is None:
        pid, raw = os.wait()
        status = raw if pid == runner else None
    os.write(writing, str(status).encode())
    os._exit(0)


def _be_runner(_: int, writing: int) -> None:
    sandbox.die_with_parent()
    os.close(writing)


def _answer(job: dict[str, Any], channel_fd: int, shared_fd: int, isolation: dict[str, str]) -> None:
    from kopt_mcp.evaluator import runner

    channel = Channel(socket.socket(fileno=channel_fd), nonce=job["nonce"])
    runner.serve(channel, shared_fd, isolation, job)


def end_like(status: int) -> NoReturn:
    """End with another process's wait status, by its signal or by its code."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def close_all_but(*keep: int) -> None:
    os.closerange(3, min(keep))
    ordered = sorted(keep)
    for low, high in pairwise(ordered):
        os.closerange(low + 1, high)
    os.closerange(ordered[-1] + 1, 4096)
