"""The harness's handle on one candidate: load it into a runner, ask it, read its bytes, end it.

Whatever goes wrong on the other side becomes a `Fault` with an evaluation status: a hang, a crash, an early exit, a
forged message, an exception in the candidate.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import SystemRandom
from typing import Any

import torch

from kopt_mcp.evaluator import binary, on_device, sandbox
from kopt_mcp.evaluator.answers import checked
from kopt_mcp.evaluator.channel import ChannelClosed, ChannelForged, ChannelTimeout
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.runners import Place, Runner
from kopt_mcp.evaluator.spent import Spent
from kopt_mcp.problem import Case, Problem, Spec

_LAST_MOMENTS_S = 2.0
"""Longest time between the end of its channel and that of a process, which says how it ended."""
_LOOKED_AT_SHARE, _SAMPLE_S = 0.2, 0.001
"""Of timed calls on a GPU, how many are looked into while they run, and about how long one takes."""
_RANDOM = SystemRandom()
_LIFE = 10
"""How many times the longest allowed call a process may compute in all."""


@dataclass(frozen=True)
class Source:
    """A candidate's file: its bytes as they were hashed, and its kind."""

    content: bytes
    sha256: str
    suffix: str


class CandidateProcess:
    """One runner with one candidate loaded."""

    def __init__(
        self,
        place: Place,
        problem: Problem,
        source: Source,
        timeout_s: float,
        cold: bool = False,
        spent: Spent | None = None,
    ) -> None:
        """`cold`: with a compile cache in which nothing of this candidate's is."""
        self.isolation: dict[str, str] = {}
        self.spent = spent or Spent()
        self.timeout_s = timeout_s
        self.turn = place.turn
        self.source = source
        self._place, self._problem = place, problem
        self._cold = cold
        self._runner: Runner | None = None
        self._leaving: bool | None = None
        self._strays = 0
        self._case: Case | None = None

    @property
    def runner(self) -> Runner:
        """The process itself.

        Raises:
            Fault: it has ended, or was never started.
        """
        if self._runner is None:
            raise Fault("RUNTIME_ERROR", "the candidate's process has ended")
        return self._runner

    def start(self) -> CandidateProcess:
        """Take a runner and have it load the candidate. Several processes may start at once, in threads.

        Raises:
            Fault: see `ask`.
        """
        self.take()
        try:
            self.load()
        except BaseException:
            self.close()
            raise
        return self

    def take(self) -> None:
        """A runner in which no candidate is yet.

        Raises:
            Fault: none can be had.
        """
        with self.spent.on("start"):
            self._runner = self._place.spares.take()
        self.isolation = self._runner.isolation

    def abandon(self) -> None:
        """End it at once, with all that it started."""
        self._end()

    def load(self) -> None:
        """Have it load the candidate.

        Raises:
            Fault: see `ask`.
        """
        with self.spent.on("load"):
            self._load(self.runner)

    def _load(self, runner: Runner) -> None:
        if not self._cold:
            self._place.caches.lend(self.source.sha256, runner.cache)
        self._place.turn.holds(runner.pid)
        name = f"kernel{self.source.suffix}"
        (runner.folder / name).write_bytes(self.source.content)
        self.ask(
            "load",
            alone=False,
            source=name,
            entry=self._problem.entry,
            adapter=self._problem.adapter,
            adapter_spec=dict(self._problem.adapter_spec),
            arguments=list(self._problem.arguments),
            mutates=list(self._problem.mutates),
            scratch=list(self._problem.scratch),
            on_device=self._place.driver is not None,
            build_timeout_s=self.timeout_s,
            cpu_s=int(_LIFE * self.timeout_s * (os.cpu_count() or 1)),
        )

    def __enter__(self) -> CandidateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_turn(self) -> bool:
        """Stop every other runner; false if they were stopped already."""
        return self.turn.take(self.runner.pid)

    def workload(self, case: Case, outputs: list[dict[str, Any]], alone: bool = True) -> bool:
        """Make the runner ready for a workload; false if it was. `outputs` describes what the reference returns."""
        if case is self._case:
            return False
        inputs = [{"spec": asdict(i)} if isinstance(i, Spec) else {"value": i} for i in case.inputs]
        literals = self.runner.shared.write(list(case.literals))
        params = {k: v for k, v in case.params.items() if isinstance(v, (int, float))}
        self.ask("workload", alone, inputs=inputs, params=params, outputs=outputs, literals=literals)
        self._case = case
        return True

    def ask(self, op: str, alone: bool = True, **fields: Any) -> dict[str, Any]:
        """One request and its answer; `alone` stops every other runner, as timing needs it.

        Raises:
            Fault: the candidate failed, hung, died or lied about the protocol.
        """
        self.begin(op, alone, **fields)
        runner = self.runner
        if runner.seals is not None and self._to_be_looked_at(op):
            runner.seals.require_unbroken()
        reply = self.answer(op)
        if runner.loop is not None and op in ("forget", "warm"):
            runner.loop.require_back()
        if runner.loop is not None and op == "warm":
            runner.loop.require_line()
        return reply

    def begin(self, op: str, alone: bool = True, **fields: Any) -> None:
        """Send a request whose answer is awaited otherwise; see `ask`."""
        runner = self.runner
        if alone:
            self._place.turn.take(runner.pid)
        else:
            self._place.turn.share(runner.pid)
        with self.faults(op):
            runner.channel.send({"op": op, **fields})

    def _to_be_looked_at(self, op: str) -> bool:
        """Whether the evaluator's code in the runner is looked at now; of a timed call, at some moment within it."""
        if op == "sample" and _RANDOM.random() < _LOOKED_AT_SHARE:
            time.sleep(_RANDOM.random() * _SAMPLE_S)
            return True
        return op in ("forget", "bye", "operators")

    def answer(self, op: str) -> dict[str, Any]:
        """The next answer, which must be to `op`.

        Raises:
            Fault: see `ask`.
        """
        with self.faults(op):
            return checked(op, self.runner.channel.receive(self.timeout_s))

    def outputs(self, reply: dict[str, Any]) -> list[torch.Tensor]:
        """Private copies of the outputs that an answer describes."""
        with self.spent.on("transfer"):
            return [self._output(meta) for meta in reply["outputs"]]

    def _output(self, meta: Any) -> torch.Tensor:
        driver = self._place.driver
        if driver is not None and isinstance(meta, dict) and "handle" in meta:
            return on_device.read(driver, meta)
        return self.runner.shared.read(meta, self._place.device)

    def binary(self) -> str | None:
        """Hash of the machine code that the candidate was compiled to, as it lies there now."""
        return binary.digest([self.runner.folder], self._place.seed_cache)

    def leave(self) -> None:
        """Ask the runner to end, without waiting for it: several may then end at once."""
        runner = self._runner
        if runner is not None and self._leaving is None:
            self._strays = len(sandbox.descendants(runner.pid)) - runner.own_processes
            if not self._cold:
                self._place.caches.keep(self.source.sha256, runner.cache)
            self._leaving = runner.say_goodbye()

    def close(self) -> str:
        """End the runner and all it started; a sentence if it did not end by itself, else empty.

        A GPU's context takes long to be given back: the end of a runner that said goodbye is not waited for there.
        """
        runner = self._runner
        if runner is None:
            return ""
        self.leave()
        self._runner = None
        ended: dict[str, Any] = {"code": 0, "leftovers": 0}
        if self._leaving and self._place.device != "cpu":
            self._place.spares.end(runner, grace_s=1.0)
        else:
            ended = runner.reap(grace_s=1.0 if self._leaving else 0.0)
        if (left := max(self._strays, ended["leftovers"] - runner.own_processes)) > 0:
            return f"it left {left} process(es) running, which were ended"
        if self._leaving and ended["code"] != 0:
            return "it did not end by itself"
        return ""

    @contextlib.contextmanager
    def faults(self, op: str) -> Iterator[None]:
        """What goes wrong with the channel, as the candidate's fault."""
        try:
            yield
        except ChannelTimeout:
            self._end()
            raise Fault("TIMEOUT", f"no answer to {op!r} within {self.timeout_s:g} s; the process was ended") from None
        except ChannelForged as error:
            self._end()
            raise Fault("CHEATED", f"the candidate's process sent {error}") from None
        except ChannelClosed:
            raise self._crash(op) from None

    def _crash(self, op: str) -> Fault:
        log = self.runner.log
        code = int(self._end(_LAST_MOMENTS_S).get("code", 0))
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        tail = log.tail()
        return Fault("RUNTIME_ERROR", f"the candidate's process {how} during {op!r}" + (f": {tail}" if tail else ""))

    def _end(self, grace_s: float = 0.0) -> dict[str, Any]:
        runner, self._runner = self._runner, None
        return {} if runner is None else runner.reap(grace_s)
