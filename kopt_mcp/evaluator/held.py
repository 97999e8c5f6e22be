"""Times by the harness's own clock, as on a CPU: nothing that a candidate does to a clock in its process matters.

For each call the runner first says that its arguments are made, over memory that is still empty. Then every process
of the candidate is stopped; the inputs are put into that memory, and the caches evicted. The clock runs from the word
to go on until the runner says where its outputs lie; they are read out of the stopped process at once. Before it
nothing can be computed, since the values are not there, and what is not done by the answer is missing from the outputs.
A system call goes on until it is over, stopped or not: so pieces of the outputs are read at the answer itself, and must
not have changed by then. A process can keep us from reading, by the lock on the map of its memory, and works meanwhile:
so the clock is read behind that too, and what it takes beyond the usual counts as time of the call. Every call has its
pieces read, since nobody is to know before which of them are looked at. Inputs are spoilt before outputs are read: they
must be copies, not other addresses of the same memory.

What an empty function takes that way is measured with a function of our own and subtracted from every call alike.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import islice
from random import Random
from typing import Any, NamedTuple

import torch

from kopt_mcp import stats
from kopt_mcp.evaluator import cores
from kopt_mcp.evaluator.arms import Arm, Timed
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.inputs import GUARD, Guarded, dense_strides, draw
from kopt_mcp.evaluator.outbox import COUNT, DIMENSION, FAILED, PLACE, TOKEN_BYTES
from kopt_mcp.evaluator.process import CandidateProcess
from kopt_mcp.evaluator.records import RESOLUTION_US
from kopt_mcp.evaluator.shared import INPUTS_AT, SharedMemory
from kopt_mcp.evaluator.snapshots import Glance, ReadMemory, Spot, can_be_read, memory_of, rebuilt
from kopt_mcp.evaluator.timing import WallClock
from kopt_mcp.problem import Case, Problem

_SLOTS = 3
"""Places that inputs go to in turn, so that addresses rotate; as many as there are calls before the first that counts,
so that their pages are known to the runner by then."""
_PAGE = 4096
_GLANCES, _PIECE_BYTES = 64, 8
"""How many pieces of inputs that are outputs are noted at the answer, about, one of each at the least, and how large
they are."""
_SLACK = 1 << 20
"""Bytes that outputs may be larger than expected before they are not even read."""
_MOST_OUTPUTS, _MOST_DIMENSIONS = 64, 64 * 64
_AGAIN = 1 / 3
"""Chance to be looked at for each call of a visit in which an earlier one was."""


class Empty(NamedTuple):
    """What a call of a function takes that does nothing, in microseconds."""

    us: float = 0.0
    """It is subtracted from every time."""
    reading_us: float = math.inf
    """How long it may take to note the pieces of outputs: what is beyond that is time of the call."""
    slack_us: float = 0.0
    """How much longer that is than at best."""


class Held:
    """See `arms.Sampler`."""

    together = False

    def __init__(
        self,
        problem: Problem,
        case: Case,
        evictor: WallClock,
        empty: Empty,
        rng: Random,
        read: ReadMemory = memory_of,
    ) -> None:
        """`read` reads another process's memory."""
        self._problem, self._case, self._evictor, self._read = problem, case, evictor, read
        self._empty, self._random = empty, rng
        self.readings_us: list[float] = []
        """How long it took in each call to note the pieces of its outputs."""
        self._outputs: list[dict[str, Any]] = []
        self._slot = 0
        self._prepared: tuple[int, Guarded] | None = None
        self._places: dict[int, list[Spot]] = {}
        """Where the outputs of each process lay at its call before."""

    def expect(self, outputs: list[dict[str, Any]]) -> None:
        """See `Sampler`."""
        self._outputs = outputs

    def wake_up(self, arm: Arm, seed: int) -> Timed:
        """See `Sampler`."""
        return self._sample(arm, seed)

    def prepare(self, seed: int, distribution: str) -> None:
        """See `Sampler`: hard values take longer to be drawn than others, and a candidate can see how long it waits."""
        self._prepared = (seed, self._drawn(seed, distribution))

    def one(self, arm: Arm, seed: int, distribution: str) -> Timed:
        """See `Sampler`."""
        return self._sample(arm, seed, distribution, look=True)

    def visit(self, arm: Arm, seeds: list[int], check: bool) -> list[Timed]:
        """See `Sampler`."""
        chosen = self._chosen(len(seeds)) if check else set()
        return [self._sample(arm, seed, look=number in chosen) for number, seed in enumerate(seeds)]

    def _chosen(self, count: int) -> set[int]:
        """One of so many calls, and perhaps some after it: a candidate sees that it was looked at, by its input, and
        would have nothing to fear any more."""
        first = self._random.randrange(count)
        return {first, *(n for n in range(first + 1, count) if self._random.random() < _AGAIN)}

    def warm(self, arm: Arm, seed: int, count: int) -> float:
        """See `Sampler`."""
        return stats.median([self._sample(arm, seed + n, cold=False).us for n in range(count)])

    def typical(self, times: list[float]) -> float:
        """See `Sampler`: what disturbs a call on a CPU only ever makes it longer."""
        return stats.quantile(times, 0.25)

    def effect(self, us: float) -> float:
        """See `Sampler`: a thread that is let go at the same moment can work while the call itself still wakes up, and
        while pieces of the outputs are read, for as long as that may take more than it has to."""
        return (self._empty.us + self._empty.slack_us) / us

    def require_plausible(self, arms: list[Arm], looked_into: bool) -> None:
        """See `Sampler`: there is no claim to doubt."""

    def _sample(
        self, arm: Arm, seed: int, distribution: str = "normal", look: bool = False, cold: bool = True
    ) -> Timed:
        begin = time.perf_counter()
        process = arm.process
        process.workload(self._case, self._outputs)
        inputs = self._inputs(seed, distribution)
        laid = _Laid(process.runner.shared, inputs, self._next_slot(inputs))
        core = cores.current()
        process.ask("lay", args=laid.args, core=core)
        call = _Call(process, self._places.get(process.runner.pid, ()))
        laid.fill()
        cores.rested()
        if cold:
            self._evictor.evict()
        with cores.waiting_on(core):
            answered_us, noted_us = call.go(laid.glance(self._problem.mutates), look)
        self.readings_us.append(noted_us - answered_us)
        us = max(answered_us, noted_us - self._empty.reading_us) - self._empty.us
        self._places[process.runner.pid] = call.places
        free = {*self._problem.mutates, *self._problem.scratch}
        memory: list[torch.Tensor] | None = None
        mutated: list[torch.Tensor] = []
        if look:
            mutated = laid.settled(self._problem.mutates)
            laid.require_unchanged(free)
            laid.spoil(free)
            memory = call.memory(4 * sum(o["bytes"] for o in self._outputs) + _SLACK, self._read)
            call.resume()
        described = process.answer("timed")["outputs"]
        if not look:
            laid.require_unchanged(free)
        outputs = None
        if look:
            returned = (
                process.outputs(process.ask("hand_over")) if memory is None else rebuilt(memory, described, call.places)
            )
            outputs = [*mutated, *returned]
        wall_us = (time.perf_counter() - begin) * 1e6
        return Timed(max(us, RESOLUTION_US), wall_us, seed, outputs, distribution)

    def _inputs(self, seed: int, distribution: str) -> Guarded:
        """What was prepared is used after as much time as others take to be drawn."""
        if self._prepared is None or self._prepared[0] != seed:
            return self._drawn(seed, distribution)
        self._drawn(secrets.randbits(40), "normal")
        (_, inputs), self._prepared = self._prepared, None
        return inputs

    def _drawn(self, seed: int, distribution: str) -> Guarded:
        return draw(self._case.inputs, self._case.literals, seed, "cpu", distribution)

    def _next_slot(self, inputs: Guarded) -> int:
        self._slot = (self._slot + 1) % _SLOTS
        return INPUTS_AT + self._slot * sum(_room(b) for b in inputs.buffers)


class _Laid:
    """The inputs of one call with their red zones, in the shared memory."""

    def __init__(self, shared: SharedMemory, inputs: Guarded, start: int) -> None:
        self._shared, self._inputs = shared, inputs
        self._at: list[dict[str, Any]] = []
        """Where each buffer goes."""
        self._tensors: dict[int, dict[str, Any]] = {}
        """Where each argument that is a tensor lies in its buffer, by position."""
        self._pieces: list[tuple[int, int, int, int]] = []
        """Of arguments that are outputs: position, where it lies, offset from there, and length."""
        self._noted: list[bytes] = []
        self.args: list[dict[str, Any]] = []
        buffers = iter(inputs.buffers)
        for position, value in enumerate(inputs.args):
            if not isinstance(value, torch.Tensor):
                self.args.append({"value": value})
                continue
            buffer = next(buffers)
            self._at.append({"shape": [buffer.numel()], "dtype": "uint8", "offset": start, "bytes": buffer.numel()})
            size = value.numel() * value.element_size()
            name = str(value.dtype).removeprefix("torch.")
            meta = {"shape": list(value.shape), "dtype": name, "offset": start + GUARD, "bytes": size}
            self._tensors[position] = meta
            self.args.append({"at": meta, "strides": dense_strides(value)})
            start += _room(buffer)

    def fill(self) -> None:
        """Put the values there."""
        for buffer, at in zip(self._inputs.buffers, self._at, strict=True):
            self._shared.view(at).copy_(buffer)

    def glance(self, positions: Sequence[int]) -> Callable[[], None]:
        """What notes pieces of arguments that are outputs, for `settled`; everything else of it is done now."""
        for position in positions:
            at, size = self._tensors[position]["offset"], self._tensors[position]["bytes"]
            step = max(1, min(size, max(_PIECE_BYTES, size * len(positions) // _GLANCES)))
            first = secrets.randbelow(step)
            self._pieces += [(position, at, o, min(_PIECE_BYTES, size - o)) for o in range(first, size, step)]
        ranges = [slice(at + offset, at + offset + length) for _, at, offset, length in self._pieces]
        memory = self._shared.memory

        def note() -> None:
            self._noted = [memory[one] for one in ranges]

        return note

    def settled(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Copies of the arguments that were glanced at, in that order.

        Raises:
            Fault: `CHEATED`, one has changed since.
        """
        memory = self._shared.memory
        for (position, at, offset, length), noted in zip(self._pieces, self._noted, strict=True):
            if memory[at + offset : at + offset + length] != noted:
                raise Fault("CHEATED", f"a timed call that had said that it was done went on changing input {position}")
        copies = []
        for position in positions:
            now = self._shared.view(self._tensors[position])
            strides = self.args[position]["strides"]
            copies.append((now if strides is None else now.as_strided(now.shape, strides)).clone())
        return copies

    def spoil(self, free: set[int]) -> None:
        """Make every value of the arguments that are not in `free` wrong."""
        for position, at in zip(self._tensors, self._at, strict=True):
            if position not in free:
                self._shared.view(at).bitwise_not_()

    def require_unchanged(self, free: set[int]) -> None:
        """See that nothing was written but the arguments in `free`.

        Raises:
            Fault: `INCORRECT_NUMERICAL`.
        """
        for position, buffer, at in zip(self._tensors, self._inputs.buffers, self._at, strict=True):
            now = self._shared.view(at)
            edges = torch.equal(now[:GUARD], buffer[:GUARD]) and torch.equal(now[-GUARD:], buffer[-GUARD:])
            if not edges or not (position in free or torch.equal(now, buffer)):
                raise Fault("INCORRECT_NUMERICAL", f"a timed call changed its input {position}, or memory beside it")


class _Call:
    """One call of a candidate that has been stopped before it."""

    def __init__(self, process: CandidateProcess, like: Sequence[Spot]) -> None:
        """`like`: where the outputs lay at its call before."""
        self._process, self._pid = process, process.runner.pid
        self._strays = process.turn.freeze(self._pid)
        self.places: list[Spot] = []
        self._glance = Glance(like)

    def go(self, note: Callable[[], None], look: bool) -> tuple[float, float]:
        """Let it run; with `look` it is stopped again at once.

        Returns:
            Microseconds until it had answered, and until pieces of the outputs had been noted: of those in its memory
            and, by `note`, of those in ours. What they hold was made by then, not by the answer.
        """
        self._process.turn.require_rest()
        channel, token = self._process.runner.channel, secrets.token_bytes(TOKEN_BYTES)
        timeout_s, main_pid = self._process.timeout_s, self._process.runner.main_pid
        with self._process.faults("timed"):
            channel.signal(token)
            begin = time.perf_counter()
            self._process.turn.release(self._pid, self._strays)
            said = channel.wait_for(TOKEN_BYTES + COUNT.size, timeout_s)
            (count,) = COUNT.unpack(said[TOKEN_BYTES:])
            count = 0 if count == FAILED else count
            if said[:TOKEN_BYTES] != token or count > _MOST_OUTPUTS:
                raise Fault("CHEATED", "the candidate's process gave an answer to 'timed' that is none")
            places = list(PLACE.iter_unpack(channel.wait_for(count * PLACE.size, timeout_s)))
            ranks = [rank for *_, rank in places]
            if sum(ranks) > _MOST_DIMENSIONS:
                raise Fault("CHEATED", "the candidate's process gave an answer to 'timed' that is none")
            dimensions = DIMENSION.iter_unpack(channel.wait_for(sum(ranks) * DIMENSION.size, timeout_s))
            answered = time.perf_counter()  # the whole answer: who says half of it may still be at work
            self.places = [Spot(at, size, tuple(islice(dimensions, rank))) for at, size, rank in places]
            note()
            self._glance(main_pid, self.places)
            noted = time.perf_counter()
        if look:
            self._process.turn.halt(self._pid, self._strays)
            self._strays = self._process.turn.freeze(self._pid)
        return (answered - begin) * 1e6, (noted - begin) * 1e6

    def resume(self) -> None:
        """Let it go on after a look."""
        self._process.turn.release(self._pid, self._strays)

    def memory(self, most: int, read: ReadMemory) -> list[torch.Tensor] | None:
        """The bytes of each output, read out of the stopped process; None where the system does not let us.

        Raises:
            Fault: they are more than `most`, changed after the answer, or cannot be read though ours could be.
        """
        if sum(place.size for place in self.places) > most:
            raise Fault("INCORRECT_SHAPE", "the outputs are larger than expected")
        try:
            found = [read(self._process.runner.main_pid, place.address, place.size) for place in self.places]
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise Fault("CHEATED", "the candidate's process says that an output lies where nothing is") from None
            if can_be_read(self._process.turn.zygote, read):
                raise Fault("CHEATED", "the candidate's process keeps its memory from being read") from None
            self._process.isolation["snapshots"] = f"off: {os.strerror(error.errno or 0)}"
            return None
        pieces = self._glance.pieces()
        if pieces is None:
            raise Fault("CHEATED", "an output could not be read when the timed call had said that it was done")
        if not all(piece.is_in(found) for piece in pieces):
            raise Fault("CHEATED", "an output changed after the timed call had said it was done, or with its input")
        return found


def _room(buffer: torch.Tensor) -> int:
    """Bytes that a buffer takes: whole pages, so that every slot is laid out alike."""
    return -(-buffer.numel() // _PAGE) * _PAGE
