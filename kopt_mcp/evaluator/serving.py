"""The harness as a process: requests over a private channel, progress messages, then one result or one error each."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kopt_mcp.evaluator import own_files
from kopt_mcp.evaluator.channel import Channel, ChannelClosed
from kopt_mcp.evaluator.files import HarnessError
from kopt_mcp.evaluator.harness import Harness, Said
from kopt_mcp.evaluator.records import Ceilings, Job
from kopt_mcp.problem import ProblemError

TOO_LARGE = (
    "the device has too little memory to check this problem, which is computed in float64 several times over: give it "
    "smaller workloads, or take a larger device."
)


def answer(harness: Harness, request: dict[str, Any], said: Said) -> Any:
    """Carry out one request; the result is JSON."""
    op = request["op"]
    if op == "torch_device":
        return asdict(harness.torch_device)
    if op == "ceilings":
        if request.get("known"):
            harness.adopt_ceilings(Ceilings(**request["known"]))
        else:
            said(0.1, "measuring what the device can reach")
        return asdict(harness.ceilings())
    if op == "describe":
        return asdict(harness.describe(harness.problem(request["problem"], request["sha256"])))
    if op == "check_problem":
        said(0.0, "trying wrong implementations on the problem")
        return [asdict(m) for m in harness.check_problem(harness.problem(request["problem"], request["sha256"]))]
    job = Job(**{**request["job"], "workloads": _names(request["job"]["workloads"])})
    with own_files.judging(job.candidate_sha256):  # what it is timed beside may be the reference itself
        problem = harness.problem(job.problem, job.problem_sha256, job.candidate_sha256)
        if op == "kernel_times":
            return [asdict(k) for k in harness.kernel_times(problem, job, request["workload"])]
        return asdict(harness.evaluate(problem, job, said))


def _outlived(harness: Harness | None, request: dict[str, Any]) -> bool:
    """See `Harness`."""
    job = request.get("job", {})
    path, digest = job.get("problem", request.get("problem")), job.get("problem_sha256", request.get("sha256"))
    return harness is not None and path is not None and harness.outlived(str(path), str(digest))


def _requests(channel: Channel) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(ChannelClosed):
        while True:
            yield channel.receive()


def _names(workloads: list[str] | None) -> tuple[str, ...] | None:
    return None if workloads is None else tuple(workloads)


def serve(channel: Channel, device: str, folder: Path, fork: bool = True) -> None:
    """Answer requests until the server closes the channel, or one is for a fresh process; `fork` as for `Harness`."""
    harness: Harness | None = None

    def said(fraction: float, text: str) -> None:
        channel.send({"event": "progress", "fraction": round(fraction, 3), "text": text})

    for request in _requests(channel):
        if _outlived(harness, request):
            channel.send({"event": "outlived"})
            break
        try:
            harness = harness or Harness(device, folder, fork)
            channel.send({"event": "result", "result": answer(harness, request, said)})
        except Exception as error:
            with contextlib.suppress(ChannelClosed):
                channel.send({"event": "error", **_told(error)})
            if isinstance(error, ChannelClosed):  # to the server, or to the forking process, without which nothing runs
                break
    if harness is not None:
        harness.close()


def _told(error: Exception) -> dict[str, str]:
    """What kind of error the server makes of it, and its text."""
    if isinstance(error, HarnessError):
        return {"kind": error.kind, "text": str(error)}
    if isinstance(error, ProblemError):
        return {"kind": "ProblemInvalid", "text": str(error)}
    on_gpu = isinstance(error, torch.cuda.OutOfMemoryError)
    if on_gpu:
        torch.cuda.empty_cache()
    if on_gpu or isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):  # which has no type of its own
        return {"kind": "ProblemInvalid", "text": f"{TOO_LARGE} {str(error)[:200]}"}
    return {"kind": "EvaluatorFailed", "text": f"{type(error).__name__}: {error}"}


def main(fd: int, device: str, folder: str) -> None:
    """Entry point of the process that `client` starts."""
    tempfile.tempdir = folder
    serve(Channel(socket.socket(fileno=fd)), device, Path(folder))
