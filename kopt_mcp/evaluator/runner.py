"""The untrusted half: a process that answers the harness about one candidate.

Forked for one evaluation and shut in by `sandbox`. It never holds an expected output and decides nothing. What it says
about structure, guards and times is believed only as far as the harness can check it; what it returns as bytes is
compared there.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kopt_mcp.evaluator import loops, native, sealing
from kopt_mcp.evaluator.candidate import Candidate
from kopt_mcp.evaluator.channel import Channel, ChannelClosed
from kopt_mcp.evaluator.peeking import Unreadable
from kopt_mcp.evaluator.watching import Structure, keep_the_heap


def serve(channel: Channel, shared_fd: int, isolation: dict[str, str], job: dict[str, Any]) -> None:
    """Answer the harness until it closes the channel. Each message is answered once, `lay` a second time when called.

    `job` holds `device`, `gpu`, `cache_bytes`, `shared_bytes` and perhaps `sealed`. A GPU is made ready before the
    first word: what takes long and needs no candidate may then be done ahead of time.
    """
    keep_the_heap()
    made: list[Candidate] = []

    def begin(job: dict[str, Any]) -> dict[str, Any]:
        if job["device"] != "cpu":
            torch.cuda.set_device(job["gpu"]["index"])
        made.append(Candidate(job["device"], job["cache_bytes"], mmap.mmap(shared_fd, job["shared_bytes"])))
        if job["device"] != "cpu":
            made[0].prime()
        if not job.get("sealed"):
            return {"isolation": isolation, "seals": []}
        try:
            standing = loops.standing(sys._getframe(1), Channel.receive.__code__)  # where the loop below waits too
            sealed = sealing.of_runner(made, channel, made[0].clock)
            return {"isolation": isolation, "seals": sealed, "standing": standing}
        except Unreadable as error:
            return {"isolation": {**isolation, "seals": f"off: {error}"}, "seals": []}

    channel.send({"op": "ready", **_tried("ready", begin, job)})
    while True:
        try:
            message = channel.receive()
        except ChannelClosed:
            return
        op = message["op"]
        if op == "bye":
            channel.send({"op": op})
            return
        reply = _tried(op, lambda message: getattr(made[0], message["op"])(message), message)
        channel.send({"op": op, **reply})
        if op == "lay" and "fault" not in reply:
            channel.send({"op": "timed", **_tried("timed", made[0].timed, channel)})


def _tried(op: str, function: Callable[[Any], dict[str, Any]], argument: Any) -> dict[str, Any]:
    """The answer, or the fault that the candidate made."""
    try:
        return function(argument)
    except Structure as error:
        return {"fault": {"kind": error.kind, "text": str(error)}}
    except BaseException as error:  # a candidate may raise SystemExit or KeyboardInterrupt too
        return {"fault": {"kind": _kind(error, op), "text": _explain(error)}}


def _kind(error: BaseException, op: str) -> str:
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return "OUT_OF_MEMORY"
    name = type(error).__name__
    compiling = isinstance(error, (native.BuildError, SyntaxError)) or name in ("CompilationError", "OutOfResources")
    return "COMPILE_ERROR" if compiling or (op == "load" and isinstance(error, ImportError)) else "RUNTIME_ERROR"


def _explain(error: BaseException) -> str:
    """The message and the candidate's own line, short enough to be read by a model."""
    here = str(Path.cwd())
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(here)]
    place = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    if isinstance(error, SyntaxError) and error.lineno:
        place = f" (line {error.lineno}: {(error.text or '').strip()})"
    hint = f"; {_SHUT_IN}" if os.strerror(errno.EACCES).lower() in str(error).lower() else ""
    return f"{type(error).__name__}: {str(error)[-1200:]}{place}{hint}".replace(here + os.sep, "")


_SHUT_IN = (
    "a kernel is shut in: it may write into its own folder only, and has no network, no sockets with a path and no "
    "memory shared by name, which multiprocessing's locks, queues, pools and managers need; threads and fork work"
)
"""What may be behind a permission that was denied; the system's own words do not say who denies it."""
