"""Calls on a GPU between two moments that the harness knows, on values that nobody in the runner has seen before.

While the process is stopped behind its queued call (see `passage`), the harness puts values into the call's inputs; and
when it has the device back, it spoils them and copies the outputs. A call that waits for the device itself cannot be
stopped: what its process does until it answers is in its time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kopt_mcp.evaluator import on_device
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.inputs import GUARD, Guarded, draw
from kopt_mcp.evaluator.line import Line
from kopt_mcp.evaluator.passage import QUEUED_S, Clears, Gone, NotShared, Passage, Went
from kopt_mcp.evaluator.snapshots import rebuilt
from kopt_mcp.problem import Case, Problem, Spec

_WAITS_S = 0.01
"""How long a call that waits for the device itself is given to get to where it waits."""


class Values(NamedTuple):
    """What the inputs of a call are drawn from."""

    seed: int
    distribution: str = "normal"


class Passed(NamedTuple):
    """A call that went through the gate."""

    went: Went
    outputs: list[torch.Tensor]
    """As they were then, mutated inputs first; none where they were not to be looked at."""


class Gate:
    """The gate in front of one candidate's calls on one workload. Close it."""

    def __init__(
        self,
        line: Line,
        driver: on_device.Driver,
        problem: Problem,
        case: Case,
        outputs: list[dict[str, Any]],
        clock: Clears,
        call_us: float = 0.0,
        own_us: float = 0.0,
        device: str = "cuda",
    ) -> None:
        """For calls that are said to take `own_us` here, and up to `call_us` in either arm.

        Raises:
            NotShared; Fault: the candidate failed.
        """
        self._passage = Passage(line, clock, call_us)
        self._process, self._driver, self._clock = line.process, driver, clock
        self._case, self._device, self._own_us = case, device, own_us
        self._mutates, self._free = problem.mutates, {*problem.mutates, *problem.scratch}
        self._at = [position for position, item in enumerate(case.inputs) if isinstance(item, Spec)]
        """Which arguments are tensors."""
        self.stops = True
        """Whether a call can be queued, and is over although its process is stopped."""
        self._maps: dict[bytes, tuple[int, int]] = {}
        """Where the candidate's allocations lie here, and their sizes, by their handles: each is mapped once."""
        try:
            self._process.workload(case, outputs)
            described = self._process.ask("hold", distribution="normal", layout="contiguous")["inputs"]
            if described is None:
                raise NotShared
            self._inputs = [driver.view(*self._open(meta)) for meta in described]
            with self._passage.queued(QUEUED_S):  # so that all memory is there, and nothing needs to be loaded
                pass
            self._places()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap the candidate's memory."""
        for address, _ in self._maps.values():
            self._driver.close(address)
        self._maps.clear()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def through(self, values: Values, look: bool) -> Passed | None:
        """Let a call pass, and read what it puts out if it is looked at. None where it was not seen to go while its
        process was stopped: that is not tried again, and other values are needed.

        Raises:
            NotShared; Fault: the candidate failed, its outputs are none, or the call is never over.
        """
        drawn = draw(self._case.inputs, self._case.literals, values.seed, self._device, values.distribution)
        passed = self._stopped_call(drawn, look) if self.stops else self._beside(drawn, look)
        self._process.ask("drain")  # nothing may be left on the device that the other's calls would wait for
        return passed

    def known(self, kind: int) -> Went | None:
        """What a call of our own takes in this process now; see `Passage.known`."""
        return self._passage.known(kind)

    def _stopped_call(self, drawn: Guarded, look: bool) -> Passed | None:
        """While its process is stopped."""
        gone: Gone | None = None
        found: list[_Found] = []
        with self._passage.queued(QUEUED_S) as (ticket, queued):
            if queued:
                places = [self._place(meta) for meta in self._places()]
                with self._passage.stopped():
                    gone = self._passage.go(
                        ticket, lambda: self._fill(drawn), lambda: found.append(self._found(drawn, places))
                    )
        if not queued:
            self._places()
        self.stops = gone is not None
        went = self._passage.went(gone, self._own_us)
        return None if went is None else Passed(went, self._outputs(found[0], places, look))

    def _beside(self, drawn: Guarded, look: bool) -> Passed:
        """While its process goes on, which waits for the device in the midst of the call: over when it has answered."""
        with self._passage.queued(_WAITS_S) as (ticket, _):
            gone = self._passage.go(ticket, lambda: self._fill(drawn), lambda: None)
        places = [self._place(meta) for meta in self._places()]
        if gone is None:
            raise Fault("SUSPECT", "its calls take far longer than is claimed by the harness's own clock")
        found = self._found(drawn, places)
        self._clock.wait()
        went = Went((time.perf_counter() - gone.begin) * 1e6, gone.cleared_us())
        return Passed(went, self._outputs(found, places, look))

    def _places(self) -> list[Any]:
        """Where the outputs of the call that was queued will be.

        Raises:
            NotShared; Fault: the candidate failed.
        """
        places: list[Any] | None = self._process.answer("enqueue")["outputs"]
        if places is None:
            raise NotShared
        return places

    def _fill(self, drawn: Guarded) -> None:
        """By a kernel: while an engine copies, another process could have the device."""
        for buffer, memory in zip(drawn.buffers, self._inputs, strict=True):
            if buffer.numel() != memory.numel():
                raise Fault("CHEATED", "the candidate's process described inputs of another size")
            torch.bitwise_or(buffer, 0, out=memory)

    def _found(self, drawn: Guarded, places: Sequence[_Place]) -> _Found:
        """What a call has left behind. Enqueued, and not waited for.

        Outputs are copied while the inputs are spoilt: they must be no other addresses of the same memory.
        """
        inputs = list(zip(self._at, drawn.buffers, self._inputs, strict=True))
        intact = [_same(memory, buffer, at in self._free) for at, buffer, memory in inputs]
        changed = {
            at: _argument(memory, drawn.args[at], buffer) for at, buffer, memory in inputs if at in self._mutates
        }
        for memory in self._inputs:
            memory.bitwise_not_()
        outputs = [place.memory.clone() for place in places]
        for memory in self._inputs:
            memory.bitwise_not_()
        return _Found(intact, [changed[at] for at in self._mutates], outputs)

    def _outputs(self, found: _Found, places: Sequence[_Place], look: bool) -> list[torch.Tensor]:
        """What a call has put out, mutated inputs first, if it is looked at; its other inputs must be as they were.

        Raises:
            Fault: they are not, or the outputs are none.
        """
        for position, intact in zip(self._at, found.intact, strict=True):
            if not intact:
                raise Fault("INCORRECT_NUMERICAL", f"a timed call changed its input {position}, or memory beside it")
        return [*found.changed, *rebuilt(found.outputs, [place.lies for place in places])] if look else []

    def _place(self, meta: Any) -> _Place:
        """An output, gaps and all, where it will be."""
        if isinstance(meta, dict) and meta.get("bytes") == 0:
            return _Place(torch.empty(0, dtype=torch.uint8, device=self._device), meta.get("lies"))
        address, size = self._open(meta)
        if meta["dtype"] != "uint8" or len(meta["shape"]) != 1:
            raise Fault("CHEATED", "the runner described an output that is none")
        return _Place(self._driver.view(address, size), meta.get("lies"))

    def _open(self, meta: Any) -> tuple[int, int]:
        """Where something lies here, and its size."""
        handle = on_device.checked(meta)
        if handle not in self._maps:
            try:
                self._maps[handle] = self._driver.open(handle)
            except OSError as error:
                raise Fault("RUNTIME_ERROR", f"its memory cannot be reached: {error.strerror}") from None
        address, size = self._maps[handle]
        if meta["offset"] + meta["bytes"] > size:
            raise Fault("CHEATED", "the runner described memory beyond its end")
        return address + meta["offset"], meta["bytes"]


class _Place(NamedTuple):
    memory: torch.Tensor
    """The bytes themselves."""
    lies: Any
    """How they are to be read, as the runner says."""


class _Found(NamedTuple):
    intact: list[torch.Tensor]
    """Of each input, whether it is as it was, or only what lies beside it if the call may change it."""
    changed: list[torch.Tensor]
    outputs: list[torch.Tensor]


def _same(memory: torch.Tensor, buffer: torch.Tensor, free: bool) -> torch.Tensor:
    if free:
        return ((memory[:GUARD] == buffer[:GUARD]) & (memory[-GUARD:] == buffer[-GUARD:])).all()
    if memory.numel() % 8 == 0:
        memory, buffer = memory.view(torch.int64), buffer.view(torch.int64)
    return (memory == buffer).all()


def _argument(memory: torch.Tensor, like: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """A copy of an argument that lies somewhere as it lies in its buffer."""
    start = like.data_ptr() - buffer.data_ptr()
    data = memory[start : start + like.numel() * like.element_size()].clone()
    return data.view(like.dtype).as_strided(like.shape, like.stride())
