"""Calls on a GPU between two moments that the harness knows: how long they take by its own clock, and nothing else.

The runner queues its calls behind a word in the shared memory, on which its stream waits, and another behind them that
its stream writes. While its process is stopped the harness puts values that nobody there has seen into the inputs of
these calls and evicts the L2. Then it sets the first word, and looks at the second until it is set. Before that nothing
can be computed; what has not been computed by then is missing from the outputs, which are read at once.

What the device takes to see the first word and to write the second is in every such time, of any candidate: only
differences between two candidates say something. Launching is not in it, since everything had been queued before.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kopt_mcp.evaluator import on_device
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.inputs import Guarded, draw
from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.queueing import DONE_AT, GO_AT
from kopt_mcp.evaluator.snapshots import rebuilt
from kopt_mcp.problem import Case

_QUEUED_S = 0.5
"""Longest time for queueing: calls that wait for the device themselves never come to an end of it."""
_SWEEPS_FIRST, _SWEEPS_MOST = 5, 50
_IDLE, _IDLE_US = 1.5, 10.0
"""How much longer than at best an eviction takes at the most if the device does nothing else."""
_PATIENCE = 20
"""How many times as long as they are said to take calls may take before they are given up."""
_MOST_S = 0.5
"""Longest time for calls that take no time: what they take is added."""


@dataclass(frozen=True)
class Passage:
    """Some calls that went through the gate together."""

    us: float
    """From the word to go on until all was done."""
    outputs: list[list[torch.Tensor]]
    """Of each call, as they were then; none where they were not to be looked at."""


class Gate:
    """The gate in front of one candidate's calls on one workload. Close it."""

    def __init__(
        self,
        process: CandidateProcess,
        driver: on_device.Driver,
        case: Case,
        outputs: list[dict[str, Any]],
        count: int,
        evict: Callable[[bool], None],
        call_us: float = 0.0,
        device: str = "cuda",
    ) -> None:
        """For `count` calls at a time, of which one is said to take `call_us`.

        `evict` clears the L2 from the harness's own context and waits for that, told whether calls are held back.

        Raises:
            Fault: the candidate's process gives no inputs.
        """
        self._process, self._driver, self._case, self._evict = process, driver, case, evict
        self._device, self._most_s = device, _MOST_S + _PATIENCE * count * call_us * 1e-6
        self._ticket = process.runner.shared.peek(GO_AT)
        self._maps: dict[bytes, tuple[int, int]] = {}
        """Where the candidate's allocations lie here, and their sizes, by their handles: each is mapped once."""
        process.workload(case, outputs)
        described = process.ask("hold", count=count, distribution="normal", layout="contiguous")["inputs"]
        try:
            self._inputs = [[self._open(meta) for meta in call] for call in described]
            first, _ = self._queue(waiting=False)  # so that all memory is there and nothing needs to be loaded
        except BaseException:
            self.close()
            raise
        self.distinct = _apart(first)
        """Whether each call has outputs of its own; where they share them, only the last call's can be read."""

    def close(self) -> None:
        """Unmap the candidate's memory."""
        for address, _ in self._maps.values():
            self._driver.close(address)
        self._maps.clear()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def through(self, seeds: list[int], look: bool) -> Passage | None:
        """Let the calls pass, one for each seed; None where they cannot be held back.

        Raises:
            Fault: the candidate failed, or its outputs are none.
        """
        drawn = self._drawn(seeds)
        described, last = self._queue(waiting=True)
        if not described:
            return None
        wanted = described if look else []
        for call in wanted:
            for meta in call:
                self._mapped(meta)  # ahead of time, so as to read at once
        with self._stopped():
            self._fill(drawn, held=True)
            begin = time.perf_counter()
            self._process.runner.shared.poke(GO_AT, self._ticket)
            us = self._over(last, begin)
            read = [] if us is None else self._read(wanted)
        self._leave()
        return None if us is None else Passage(us, read)

    def at_once(self, seeds: list[int], look: bool) -> Passage | None:
        """The same for calls that cannot be held back: from the moment when they are asked for, the host's part too.

        Raises:
            Fault: the candidate failed, or its outputs are none.
        """
        drawn = self._drawn(seeds)
        self._process.take_turn()
        with self._stopped():
            self._fill(drawn, held=False)
        begin = time.perf_counter()
        described, last = self._queue(waiting=False)
        us = self._over(last, begin)
        read = [] if us is None else self._read(described if look else [])
        self._leave()
        return None if us is None or not described else Passage(us, read)

    def _leave(self) -> None:
        """See that nothing is left on the device that the other's calls would wait for."""
        self._process.ask("drain")

    def _drawn(self, seeds: list[int]) -> list[Guarded]:
        made = {seed: draw(self._case.inputs, self._case.literals, seed, self._device) for seed in set(seeds)}
        return [made[seed] for seed in seeds]

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        turn, pid = self._process.turn, self._process.runner.pid
        turn.halt(pid)
        try:
            yield
        finally:
            turn.release(pid, [])

    def _queue(self, waiting: bool) -> tuple[list[list[Any]], int]:
        """Have the calls queued: where their outputs will be, or nothing where they were let go at once; the last word.

        What the last word is to hold is not known before the calls are queued, so that none of them can write it.
        """
        process, word, self._ticket = self._process, self._process.runner.shared, self._ticket + 1
        if not waiting:
            word.poke(GO_AT, self._ticket)
        process.begin("enqueue", ticket=self._ticket)
        queued = not waiting or bool(select.select([process.runner.channel.fileno()], [], [], _QUEUED_S)[0])
        if not queued:
            word.poke(GO_AT, self._ticket)
        described: list[list[Any]] = process.answer("enqueue")["outputs"]
        last = 1 + secrets.randbits(30)
        process.ask("tell", value=last)
        if queued and len(described) == len(self._inputs):
            return described, last
        word.poke(GO_AT, self._ticket)
        return [], last

    def _fill(self, drawn: list[Guarded], held: bool) -> None:
        for values, places in zip(drawn, self._inputs, strict=True):
            for buffer, (address, size) in zip(values.buffers, places, strict=True):
                if buffer.numel() != size:
                    raise Fault("CHEATED", "the candidate's process described inputs of another size")
                self._driver.write(address, buffer)
        self._evict(held)

    def _over(self, last: int, begin: float) -> float | None:
        """Microseconds until all is over; None where it never is, for want of the process perhaps, which is stopped."""
        word = self._process.runner.shared
        while word.peek(DONE_AT) != last:
            if time.perf_counter() - begin > self._most_s:
                return None
        return (time.perf_counter() - begin) * 1e6

    def _read(self, described: list[list[Any]]) -> list[list[torch.Tensor]]:
        """The last calls' first: there it would show that they were not over."""
        return [[self._output(meta) for meta in call] for call in reversed(described)][::-1]

    def _output(self, meta: Any) -> torch.Tensor:
        data = on_device.copied(self._driver, meta, *self._mapped(meta))
        return rebuilt([data], [meta.get("lies")])[0]

    def _open(self, meta: Any) -> tuple[int, int]:
        """Where an input lies here, and its size."""
        address, size = self._mapped(meta)
        if meta["offset"] + meta["bytes"] > size:
            raise Fault("CHEATED", "the runner described an input beyond the end of its memory")
        return address + meta["offset"], meta["bytes"]

    def _mapped(self, meta: Any) -> tuple[int, int]:
        handle = on_device.checked(meta)
        if handle not in self._maps:
            try:
                self._maps[handle] = self._driver.open(handle)
            except OSError as error:
                raise Fault("RUNTIME_ERROR", f"its memory cannot be reached: {error.strerror}") from None
        return self._maps[handle]


def _apart(described: list[list[Any]]) -> bool:
    """Whether no output begins where another does."""
    places = [(meta.get("handle"), meta.get("offset")) for call in described for meta in call if isinstance(meta, dict)]
    return len({repr(place) for place in places}) == len(places)


class Sweep:
    """Evicts the L2 from the harness's own context, and sees by that whether the device does anything else.

    Work that a candidate has left on the device would be in the time of the calls that come next, which are another's.
    """

    def __init__(self, evict: Callable[[], float]) -> None:
        """`evict` says how many microseconds it took on the device."""
        self._evict = evict
        self._least: dict[bool, float] = {}

    def __call__(self, held: bool) -> None:
        """Evict while calls are held back, or are not. What that takes at best is known from the first time.

        Raises:
            Fault: the device is never idle.
        """
        if held not in self._least:
            self._least[held] = min(self._evict() for _ in range(_SWEEPS_FIRST))
        for _ in range(_SWEEPS_MOST):
            us = self._evict()
            self._least[held] = min(self._least[held], us)
            if us <= _IDLE * self._least[held] + _IDLE_US:
                return
        raise Fault("DEVICE_BUSY", "the device works while nothing of this evaluation should run there")
