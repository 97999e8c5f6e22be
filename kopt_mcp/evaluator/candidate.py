"""A loaded candidate in its own process: call it as it is told, hand back raw bytes and claims.

On a GPU it draws inputs from seeds that arrive one at a time and times its own calls; on a CPU the harness puts the
inputs of a timed call into the shared memory while this process is stopped, and holds the clock itself.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kopt_mcp.evaluator import cores, native, on_device, sandbox
from kopt_mcp.evaluator.channel import Channel
from kopt_mcp.evaluator.inputs import NEARER, Guarded, draw, room
from kopt_mcp.evaluator.loading import imported
from kopt_mcp.evaluator.operators import computing, dispatched, kernel_rows
from kopt_mcp.evaluator.outbox import COUNT, FAILED, TOKEN_BYTES, Outbox, dtype_name, view, where
from kopt_mcp.evaluator.queueing import DONE_AT, GO_AT, Stream
from kopt_mcp.evaluator.timing import KINDS, EventClock, WallClock, clock_for
from kopt_mcp.evaluator.watching import (
    Poison,
    Structure,
    global_state,
    late,
    plain_outputs,
    same_bits,
    state_changes,
    sums,
)
from kopt_mcp.problem import DISTRIBUTIONS, Spec


class Candidate:
    """A candidate and the workload it is called on; in slots, so that the harness can watch over them, see `seals`."""

    __slots__ = (
        *(
            "_arguments",
            "_cache_bytes",
            "_call_native",
            "_core",
            "_function",
            "_gate",
            "_given",
            "_held",
            "_inputs",
            "_kept",
            "_laid",
            "_literals",
        ),
        *("_made_clock", "_mutates", "_operators", "_outbox", "_outputs", "_params", "_previous", "_scratch"),
        *("_shared", "device"),
    )

    def __init__(self, device: str, cache_bytes: int, shared: mmap.mmap) -> None:
        self.device = device
        self._cache_bytes = cache_bytes
        self._shared = shared
        self._outbox = Outbox(shared, device)
        self._mutates: list[int] = []
        self._scratch: list[int] = []
        self._arguments: list[str] = []
        self._inputs: tuple[Any, ...] = ()
        self._params: dict[str, Any] = {}
        self._literals: list[torch.Tensor] = []
        self._outputs: list[dict[str, Any]] = []
        self._kept: dict[int, list[torch.Tensor]] = {}
        self._previous: list[Guarded] = []
        self._laid: list[Any] = []
        self._core: int | None = None
        """On which the next timed call is awaited."""
        self._given: Guarded | None = None
        """Of a checked call: what a C function was given to write to."""
        self._function: Callable[..., Any]
        self._made_clock: WallClock | EventClock | None = None
        self._operators = dispatched()
        self._gate: Stream | None = None
        self._held: Guarded | None = None

    @property
    def clock(self) -> WallClock | EventClock:
        """Made when it is needed: its cache-sized buffer is not where the harness holds the clock."""
        if self._made_clock is None:
            self._made_clock = clock_for(self.device, self._cache_bytes)
        return self._made_clock

    def prime(self) -> None:
        """Call a function of our own: a GPU loads what checking and timing need, and no first call pays for it.

        Streams and registered memory are made here too: where that was left to the first queued call, while processes
        of the check before were ending, it took more than 0.2 s now and then (on an H200).
        """
        self._function = torch.clone
        call: dict[str, Any] = {"seed": 1, "layout": "contiguous", "poison": 0, "own_stream": False, "first_seed": None}
        call["shares"] = False
        for dtype in ("float32", "float16", "bfloat16"):
            spec = asdict(Spec("normal", (64, 64), dtype, {"scale": 1.0, "shift": 0.0}))
            self.workload({"inputs": [{"spec": spec}], "params": {}, "outputs": [], "literals": []})
            for distribution in (*DISTRIBUTIONS, *NEARER):
                self.call({**call, "distribution": distribution})
            self.sample({**call, "distribution": "normal", "spin_us": 10.0, "warm": False, "keep": False})
        if isinstance(self.clock, EventClock):
            for kind in range(KINDS):
                self.clock.known(kind)
            with suppress(OSError, AttributeError):  # without such words there is no gate, which `enqueue` says later
                self.enqueue({"ticket": 0, "known": 0, "tells": True})
            self._synchronise()

    def load(self, message: dict[str, Any]) -> dict[str, Any]:
        """Import or build the candidate, which may compute for `cpu_s` seconds in all."""
        sandbox.limit_cpu(message["cpu_s"])
        if message["on_device"]:
            self._outbox.leave_on_device()
        self._arguments = message["arguments"]
        self._mutates, self._scratch = message["mutates"], message["scratch"]
        source = Path.cwd() / message["source"]
        if source.suffix == ".py":
            spec = {**message["adapter_spec"], "device": self.device}
            self._function = imported(source, message["entry"], message["adapter"], spec)
            return {}
        called = message["entry"], self._arguments, self.device != "cpu"
        library = native.build(source, Path.cwd(), message["build_timeout_s"])
        native.require_fitting(source, *called)
        self._call_native = native.bind(library, *called)
        self._function = self._native
        return {}

    def workload(self, message: dict[str, Any]) -> dict[str, Any]:
        """Take on another workload: recipes of the inputs, and the shapes of the outputs for a C function."""
        self._inputs = tuple(Spec(**i["spec"]) if "spec" in i else i["value"] for i in message["inputs"])
        self._params = message["params"]
        self._outputs = message["outputs"]
        self._outbox.make_room(self._outputs)
        self._literals = [view(self._shared, m).to(self.device, copy=True) for m in message["literals"]]
        self._kept.clear()
        self._previous.clear()
        self._laid.clear()
        self._held = None
        return {}

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        """One checked call: poisoned memory, watched inputs, outputs copied out."""
        begin = time.perf_counter()
        inputs = self._draw(message) if message["first_seed"] is None else self._draw_again(message)
        before = [t.clone() for t in inputs.tensors()]
        state = global_state()
        drawn = time.perf_counter()
        self._given = room((), self.device)
        with Poison(message["poison"], self._outputs, self.device):
            out = self._run(inputs, own_stream=message["own_stream"])
        given, self._given = self._given, None
        ran = time.perf_counter()
        outputs = self._normalise(out, inputs, message["shares"])
        violations = [*self._watched(inputs, before), *state_changes(state)]
        if not given.guards_intact():
            violations.append(["INCORRECT_NUMERICAL", "it wrote outside its outputs"])
        stored = self._outbox.put(outputs)
        parts = {"draw": drawn - begin, "run": ran - drawn, "store": time.perf_counter() - ran}
        return {"outputs": stored, "violations": violations, "parts": parts}

    def sample(self, message: dict[str, Any]) -> dict[str, Any]:
        """One call on fresh values that times itself, its output kept to be asked for, and fingerprinted at once.

        All that is looked at stays on the device until the end: each look at a number makes the host wait for it.
        """
        inputs = self._draw(message)
        free = {*self._mutates, *self._scratch}
        watched = [t for i, t in enumerate(inputs.args) if isinstance(t, torch.Tensor) and i not in free]
        before, state = sums(watched), global_state()
        args = inputs.args
        kept, sample = self.clock.sample(
            lambda: self._function(*args),
            message["spin_us"],
            message["warm"],
            before=late(inputs.tensors()),
            after=lambda out: [t.detach().clone() for t in self._normalise(out, inputs)],
        )
        prints = sums(kept)
        looked_at = [prints, before == sums(watched), inputs.guards()]
        numbers = torch.cat([one for one in looked_at if one.numel()]).tolist()
        if not all(numbers[prints.numel() :]):
            raise Structure("INCORRECT_NUMERICAL", "a timed call changed an input, or memory beside it")
        for kind, text in state_changes(state):
            raise Structure(kind, f"in a timed call {text}")
        if message["keep"]:
            self._kept[message["seed"]] = kept
        return {
            "us": sample.us,
            "host_us": sample.host_us,
            "tail_us": sample.tail_us,
            "print": numbers[: prints.numel()],
        }

    def settle(self, message: dict[str, Any]) -> dict[str, Any]:
        """A call that does not count: the first one after a switch of processes pays for the switch."""
        args = (self._previous[-1] if self._previous else self._draw(message)).args
        self.clock.sample(lambda: self._function(*args), message["spin_us"], warm=True)
        return {}

    def warm(self, message: dict[str, Any]) -> dict[str, Any]:
        """Times of repeated calls on the same inputs, caches warm."""
        args = self._draw(message).args
        times = []
        for _ in range(message["count"] + 1):
            _, sample = self.clock.sample(lambda: self._function(*args), message["spin_us"], warm=True)
            times.append(sample.us)
        return {"us": times[1:]}

    def fetch(self, message: dict[str, Any]) -> dict[str, Any]:
        """The output of one earlier timed call."""
        return {"outputs": self._outbox.put(self._kept[message["seed"]])}

    def forget(self, _: dict[str, Any]) -> dict[str, Any]:
        """Drop the kept outputs. Every visit ends with this, and no candidate is called in it."""
        self._kept.clear()
        if self.device != "cpu" and dispatched() != self._operators:
            raise Structure("CHEATED", "it put code of its own into torch's operators, with which calls are timed")
        return {}

    def lay(self, message: dict[str, Any]) -> dict[str, Any]:
        """Make the arguments of the next timed call, over memory that the harness is still to fill."""
        self._laid = [self._over_shared(a) if "at" in a else a["value"] for a in message["args"]]
        self._core = cores.apart_from(message["core"])
        return {}

    def _over_shared(self, argument: dict[str, Any]) -> torch.Tensor:
        tensor = view(self._shared, argument["at"])
        strides = argument["strides"]
        return tensor if strides is None else tensor.as_strided(tensor.shape, strides)

    def timed(self, channel: Channel) -> dict[str, Any]:
        """Wait for the harness's word, call, and say at once where the outputs lie: the harness holds the clock."""
        args = self._laid
        with cores.waiting_on(self._core):
            token = channel.wait_for(TOKEN_BYTES)
        try:
            out = self._function(*args)
        except BaseException:
            channel.signal(token + COUNT.pack(FAILED))
            raise
        channel.signal(token + where(out))
        tensors = plain_outputs(out, self._own(args), self.device)
        self._laid.append(out)  # alive until the next call is laid: the harness may still read it
        described = [{"shape": list(t.shape), "dtype": dtype_name(t), "strides": list(t.stride())} for t in tensors]
        return {"outputs": described}

    def hand_over(self, _: dict[str, Any]) -> dict[str, Any]:
        """The outputs of the timed call before, for a harness that may not read this process's memory."""
        return {"outputs": self._outbox.put(plain_outputs(self._laid[-1], [], self.device))}

    def hold(self, message: dict[str, Any]) -> dict[str, Any]:
        """Make the arguments of a call, over memory that the harness is to fill each time; see `gate`."""
        self._held = self._draw({**message, "seed": 1})
        return {"inputs": _named(self._held.buffers, on_device.named)}

    def enqueue(self, message: dict[str, Any]) -> dict[str, Any]:
        """Queue a call behind a word, or one of our own; say where its outputs will be.

        That it is over is said once another word has come, so that saying so is not in its time, or, of one that
        `tells`, at once. A process of which several streams wait sees a word 2.5 us sooner than where one does (on an
        H200): so several always do, lest calls that use several gain by it.
        """
        assert not isinstance(self.clock, WallClock)
        if self._gate is None:
            self._gate = Stream(self._shared)
        ticket = message["ticket"]
        self._gate.wait_beside(GO_AT, ticket)
        self._gate.wait(GO_AT, ticket)
        if message["known"] is not None:
            self.clock.known(message["known"])
        else:
            assert self._held is not None
            self._laid = [self._function(*self._held.args)]  # alive until the next one: the harness reads it
        if not message["tells"]:
            self._gate.wait(GO_AT, ticket + 1)
        self._gate.write(DONE_AT, ticket)
        if message["known"] is not None:
            return {"outputs": []}
        assert self._held is not None
        return {"outputs": _named(plain_outputs(self._laid[0], self._own(self._held.args), self.device), _lying)}

    def drain(self, _: dict[str, Any]) -> dict[str, Any]:
        """Wait until nothing of this process is left on the device, on whatever stream."""
        self._synchronise()
        return {}

    def operators(self, message: dict[str, Any]) -> dict[str, Any]:
        """Torch's own operators that compute in one call, whatever names the candidate calls them by; and whether the
        next call puts its outputs where those of this one still are."""
        inputs = self._draw(message)
        outs: list[Any] = []
        names = computing(lambda: outs.append(self._function(*inputs.args)))
        outs.append(self._function(*inputs.args))
        self._synchronise()
        given = _storages(inputs.tensors())
        first, second = (_storages(plain_outputs(out, [], self.device)) - given for out in outs)
        return {"names": sorted(names)[:20], "overwrites": bool(first & second)}

    def profile(self, message: dict[str, Any]) -> dict[str, Any]:
        """Device kernels of one call, through torch.profiler."""
        from torch.profiler import ProfilerActivity, profile

        args = self._draw(message).args
        self._function(*args)
        kinds = [ProfilerActivity.CPU] if self.device == "cpu" else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=kinds) as session:
            self._function(*args)
            self._synchronise()
        return {"kernels": kernel_rows(session, self.device != "cpu")}

    def _draw(self, message: dict[str, Any]) -> Guarded:
        inputs = draw(
            self._inputs, self._literals, message["seed"], self.device, message["distribution"], message["layout"]
        )
        self._previous = [*self._previous[-1:], inputs]  # the last call's stay alive, so that addresses rotate
        return inputs

    def _draw_again(self, message: dict[str, Any]) -> Guarded:
        """New values in tensors that a call has seen before: the same objects, addresses and version counters."""
        inputs = self._draw({**message, "seed": message["first_seed"]})
        self._run(inputs, message["own_stream"])
        for tensor, values in zip(inputs.tensors(), self._draw(message).tensors(), strict=True):
            tensor.data.copy_(values)
        return inputs

    def _run(self, inputs: Guarded, own_stream: bool) -> Any:
        if not own_stream or self.device == "cpu":
            out = self._function(*inputs.args)
            self._synchronise()
            return out
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = self._function(*inputs.args)
        stream.synchronize()
        return out

    def _synchronise(self) -> None:
        if isinstance(self._made_clock, EventClock):
            self._made_clock.wait()

    def _native(self, *args: Any) -> Any:
        """Call a C function: the outputs are allocated here, the params are those of the workload."""
        values: dict[str, Any] = {**self._params, **{f"in{i}": a for i, a in enumerate(args)}}
        wanted = self._outputs[len(self._mutates) :]
        if self._given is None:  # a timed call: watching would cost time
            outputs = [torch.empty(o["shape"], dtype=getattr(torch, o["dtype"]), device=self.device) for o in wanted]
        else:
            self._given = room(wanted, self.device)
            outputs = self._given.args
        self._call_native({**values, **{f"out{i}": o for i, o in enumerate(outputs)}})
        return tuple(outputs)

    def _normalise(self, out: Any, inputs: Guarded, shares: bool = False) -> list[torch.Tensor]:
        """The outputs as plain tensors, mutated inputs first; they may lie in inputs where the reference's own do.

        Raises:
            Structure: see `plain_outputs`.
        """
        own = [] if shares else self._own(inputs.args)
        return [*(inputs.args[i] for i in self._mutates), *plain_outputs(out, own, self.device)]

    def _own(self, args: list[Any]) -> list[torch.Tensor]:
        """The inputs whose memory no output may share: all but those that were lent for that."""
        return [a for i, a in enumerate(args) if isinstance(a, torch.Tensor) and i not in self._scratch]

    def _watched(self, inputs: Guarded, before: list[torch.Tensor]) -> list[list[str]]:
        found = []
        if not inputs.guards_intact():
            found.append(["INCORRECT_NUMERICAL", "it wrote outside its inputs"])
        tensors = [i for i, a in enumerate(inputs.args) if isinstance(a, torch.Tensor)]
        for position, copy in zip(tensors, before, strict=True):
            if position not in (*self._mutates, *self._scratch) and not same_bits(inputs.args[position], copy):
                found.append(["INCORRECT_NUMERICAL", f"it changed its input {position}"])
        return found


def _named(tensors: list[torch.Tensor], name: Callable[..., dict[str, Any]]) -> list[dict[str, Any]] | None:
    """How the harness finds these tensors; None where no other process can be given their memory."""
    driver = on_device.CudaDriver()
    try:
        return [name(driver, tensor) for tensor in tensors]
    except OSError:
        return None


def _lying(driver: on_device.Driver, tensor: torch.Tensor) -> dict[str, Any]:
    """Where an output's bytes are, gaps and all, and how they are to be read."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else -1
    lies = {"shape": list(tensor.shape), "strides": list(tensor.stride()), "dtype": dtype_name(tensor)}
    if tensor.numel() == 0:
        return {"bytes": 0, "lies": lies}
    return {**on_device.named(driver, tensor.as_strided((last + 1,), (1,)).view(torch.uint8)), "lies": lies}


def _storages(tensors: list[torch.Tensor]) -> set[int]:
    """Where their memory begins, of those that have any."""
    return {t.untyped_storage().data_ptr() for t in tensors if t.numel()}
