"""The server's side of the evaluator: what the loop may ask, and the process that answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter

from kopt_mcp.errors import Cancelled, EvaluatorFailed, KoptError, ProblemInvalid, ToolUnavailable, WorkspaceFailed
from kopt_mcp.evaluator import sandbox
from kopt_mcp.evaluator.channel import Channel, ChannelClosed, ChannelForged
from kopt_mcp.evaluator.clearing import remove
from kopt_mcp.evaluator.records import Ceilings, Evaluation, Job, KernelTime, Mutant, ProblemInfo, TorchDevice
from kopt_mcp.interpreter import install_line
from kopt_mcp.watch import Watch

_T = TypeVar("_T")
LOOK_AGAIN_S = 0.2


class Evaluator(Protocol):
    """What the loop asks. Each method may raise `EvaluatorFailed`, `ToolUnavailable`, `ProblemInvalid`, `Cancelled`."""

    def torch_device(self, device: str) -> TorchDevice:
        """The device as the user's torch sees it."""

    def describe(self, problem: Path, sha256: str, device: str) -> ProblemInfo:
        """Load the problem file and say what it declares for `device`."""

    def ceilings(self, device: str, watch: Watch) -> Ceilings:
        """Measure what the device can reach (cached by device, driver and library versions)."""

    def check_problem(self, problem: Path, sha256: str, device: str, watch: Watch) -> list[Mutant]:
        """Try deliberately wrong implementations on the problem's own checks."""

    def evaluate(self, job: Job, watch: Watch) -> Evaluation:
        """Check and, if asked, time one candidate."""

    def kernel_times(self, job: Job, workload: str, watch: Watch) -> list[KernelTime]:
        """Which device kernels one call of the candidate runs, and for how long (torch.profiler)."""


TOO_OLD = "kopt: too old: "
BOOTSTRAP = f"""
import sys
if sys.version_info < (3, 10):
    sys.exit("{TOO_OLD}Python %d.%d, and 3.10 or newer is needed" % sys.version_info[:2])
import importlib.util
root, entry, *rest = sys.argv[1:]
spec = importlib.util.spec_from_file_location("kopt_mcp", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["kopt_mcp"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from kopt_mcp.evaluator.serving import main
main(int(entry), *rest)
"""
"""Run under the user's interpreter, which need not have this package: only `kopt_mcp` is found here, and nothing of the
server's other packages can shadow the user's own."""


class LocalEvaluator:
    """An `Evaluator` on this machine: one warm harness per device, under the user's interpreter."""

    def __init__(self, python: str | Callable[[], str], cache: Path) -> None:
        self._python = python if callable(python) else lambda: python
        self._cache = cache
        self._harnesses: dict[str, _HarnessProcess] = {}
        self._turns: dict[str, threading.Lock] = {}

    def torch_device(self, device: str) -> TorchDevice:
        """See `Evaluator`."""
        return self._ask(TorchDevice, device, {"op": "torch_device"}, Watch())

    def describe(self, problem: Path, sha256: str, device: str) -> ProblemInfo:
        """See `Evaluator`."""
        return self._ask(ProblemInfo, device, {"op": "describe", "problem": str(problem), "sha256": sha256}, Watch())

    def ceilings(self, device: str, watch: Watch) -> Ceilings:
        """See `Evaluator`. Kept on disk by device and versions, since they hardly change."""
        here = self.torch_device(device)
        key = sha256(json.dumps([here.uuid, here.name, here.versions], sort_keys=True).encode()).hexdigest()[:16]
        file = self._cache / f"ceilings-{key}.json"
        known: Ceilings | None = None
        with contextlib.suppress(OSError, ValueError):
            known = TypeAdapter(Ceilings).validate_json(file.read_bytes())
        measured = self._ask(Ceilings, device, {"op": "ceilings", "known": asdict(known) if known else None}, watch)
        if known is None:
            with contextlib.suppress(OSError):  # a cache that cannot be written costs a second measurement, no more
                self._cache.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(asdict(measured)), encoding="utf-8")
        return measured

    def check_problem(self, problem: Path, sha256: str, device: str, watch: Watch) -> list[Mutant]:
        """See `Evaluator`."""
        request = {"op": "check_problem", "problem": str(problem), "sha256": sha256}
        return self._ask(list[Mutant], device, request, watch)

    def evaluate(self, job: Job, watch: Watch) -> Evaluation:
        """See `Evaluator`."""
        if job.kind != "verify":
            self.describe(Path(job.problem), job.problem_sha256, job.device)  # a fresh harness is told the ceilings too
            self.ceilings(job.device, watch)
        return self._ask(Evaluation, job.device, {"op": "evaluate", "job": asdict(job)}, watch)

    def kernel_times(self, job: Job, workload: str, watch: Watch) -> list[KernelTime]:
        """See `Evaluator`."""
        request = {"op": "kernel_times", "job": asdict(job), "workload": workload}
        return self._ask(list[KernelTime], job.device, request, watch)

    def close(self) -> None:
        """End all harnesses and what they started."""
        for harness in self._harnesses.values():
            harness.kill()
        self._harnesses.clear()

    def _ask(self, kind: type[_T], device: str, request: dict[str, Any], watch: Watch) -> _T:
        with self._turn(device, watch):
            try:
                result = self._answer(device, request, watch)
            except Cancelled:
                self._harnesses.pop(device, None)
                raise
        return TypeAdapter(kind).validate_python(result)

    def _answer(self, device: str, request: dict[str, Any], watch: Watch) -> Any:
        """By the harness that runs, or by a fresh one where there is none, or that has outlived its problem."""
        harness = self._harnesses.get(device)
        if harness is None or not harness.alive():
            watch.progress(0.0, "starting the evaluator")
            harness = self._harnesses[device] = _HarnessProcess(self._python(), device)
        with watch.ending(harness.kill):
            try:
                return harness.request(request, watch)
            except _Outlived:
                harness.kill()
        return self._answer(device, request, watch)

    @contextlib.contextmanager
    def _turn(self, device: str, watch: Watch) -> Iterator[None]:
        """One request at a time: answers bear no name, and several calls may want the same harness, some unlocked."""
        lock = self._turns.setdefault(device, threading.Lock())
        while not lock.acquire(timeout=LOOK_AGAIN_S):
            if watch.cancelled:
                raise Cancelled("gave up waiting for the evaluator; nothing ran; call again.")
            watch.progress(0.0, "waiting for the evaluator, which answers another call")
        try:
            yield
        finally:
            lock.release()


class _Outlived(Exception):
    """The request is for a fresh harness."""


class _HarnessProcess:
    """A running harness and the channel to it."""

    def __init__(self, python: str, device: str) -> None:
        ours, theirs = socket.socketpair()
        self._folder = Path(tempfile.mkdtemp(prefix="kopt-"))
        self._log = (self._folder / "harness.log").open("wb")
        package = str(Path(__file__).resolve().parent.parent)
        command = [python, "-I", "-B", "-c", BOOTSTRAP, package, str(theirs.fileno()), device, str(self._folder)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            self._log.close()
            remove(self._folder)
            raise ToolUnavailable(
                f"the interpreter {python!r} cannot be started: {error.strerror}; set `python:` in kopt.yaml or "
                f"KOPT_PYTHON to the one that has your torch."
            ) from error
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self._python = python
        self._last_words = ""

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def request(self, request: dict[str, Any], watch: Watch) -> Any:
        """One request, its progress, its result.

        Raises:
            KoptError: of the kind that the harness names; `Cancelled` where the watch was cancelled.
            _Outlived: this harness cannot answer it, and has ended.
        """
        try:
            self._channel.send(request)
            while (message := self._channel.receive())["event"] == "progress":
                watch.progress(message["fraction"], message["text"])
        except (ChannelClosed, ChannelForged) as error:
            self.kill()
            if watch.cancelled:
                raise Cancelled("the call was cancelled; the experiment is where it was before it.") from None
            raise self._death(error) from error
        if message["event"] == "outlived":
            raise _Outlived
        if message["event"] == "error":
            raise _ERRORS.get(message["kind"], EvaluatorFailed)(message["text"])
        return message["result"]

    def kill(self) -> None:
        """End the harness, its forking process, and every runner and what it left behind."""
        victims = [self._process.pid, *sandbox.descendants(self._process.pid)]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        self._log.close()
        with contextlib.suppress(OSError):
            self._last_words = (self._folder / "harness.log").read_text(errors="replace")[-2000:]
        remove(self._folder)

    def _death(self, error: Exception) -> KoptError:
        return unusable(self._python, self._last_words) or EvaluatorFailed(
            f"the evaluator ended unexpectedly ({error}); call again. Its last words: {self._last_words[-500:]}"
        )


def unusable(python: str, last_words: str) -> ToolUnavailable | None:
    """The refusal, where the end of what a harness wrote says that the fault is its interpreter's."""
    line = next(reversed(last_words.strip().splitlines()), "")
    other = "set `python:` in kopt.yaml or KOPT_PYTHON to the one that has your torch"
    if line.startswith(TOO_OLD):
        return ToolUnavailable(f"the interpreter {python!r} is {line.removeprefix(TOO_OLD)}; {other}.")
    if "No module named 'torch'" in line:
        return ToolUnavailable(f"the interpreter {python!r} has no torch; run {install_line(python)}, or {other}.")
    if re.search(r"^\s+import torch$", last_words, re.MULTILINE) and "Error" in line:
        return ToolUnavailable(
            f"torch does not import in the interpreter {python!r} ({line[:300]}); "
            f"run {install_line(python, again=True)}, or {other}."
        )
    return None


_ERRORS: dict[str, type[KoptError]] = {
    "ProblemInvalid": ProblemInvalid,
    "ToolUnavailable": ToolUnavailable,
    "WorkspaceFailed": WorkspaceFailed,
    "EvaluatorFailed": EvaluatorFailed,
}
