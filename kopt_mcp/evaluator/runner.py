"""The untrusted half: import a candidate, call it, hand back raw bytes and claims.

Runs in a process forked for one evaluation, shut in by `sandbox`. It draws inputs from seeds that arrive one at a time,
after the candidate is imported; it never holds an expected output and decides nothing. What it says about structure,
guards and times is believed only as far as the harness can check it; what it returns as bytes is compared there.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import mmap
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kopt_mcp.evaluator import native
from kopt_mcp.evaluator.channel import Channel, ChannelClosed
from kopt_mcp.evaluator.inputs import Guarded, draw
from kopt_mcp.evaluator.timing import clock_for
from kopt_mcp.problem import Spec
from kopt_mcp.problems import adapters

adapters.preload()

_M_PERTURB, _M_MMAP_MAX, _M_TRIM_THRESHOLD = -6, -4, -1
"""Parameters of glibc's mallopt: fill allocated memory with a byte, so that unwritten outputs show; take large blocks
from the heap, and never give it back: otherwise every timed call would pay for the page faults of a fresh output."""


_LATE_STRIDE, _LATE_MOST = 61, 8192
"""Spacing of the elements that arrive late, and about how many there are at most: too few to warm the L2."""
_NO_WORK = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh", "set_"}
    | {"resize_", "_unsafe_view", "_reshape_alias", "record_stream", "copy_", "clone", "_to_copy", "fill_", "zero_"}
)
"""Operators that allocate, move or look at data, and compute nothing."""


class Structure(Exception):
    """What a candidate returned is not what it must return; `kind` is an evaluation status."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Candidate:
    """A loaded candidate and the workload it is called on."""

    def __init__(self, job: dict[str, Any], shared: mmap.mmap) -> None:
        self.device: str = job["device"]
        self._entry: str = job["entry"]
        self._adapter: str = job.get("adapter", "")
        self._adapter_spec: dict[str, Any] = {**job.get("adapter_spec", {}), "device": self.device}
        self._arguments: list[str] = job["arguments"]
        self._mutates: list[int] = job["mutates"]
        self._scratch: list[int] = job.get("scratch", [])
        self._shared = shared
        self._clock = clock_for(self.device, job["cache_bytes"])
        self._inputs: tuple[Any, ...] = ()
        self._params: dict[str, Any] = {}
        self._literals: list[torch.Tensor] = []
        self._outputs: list[dict[str, Any]] = []
        self._kept: dict[int, list[torch.Tensor]] = {}
        self._pinned = 0
        self._prepared: dict[int, Any] = {}
        self._previous: list[Guarded] = []
        self._function: Callable[..., Any]

    def load(self, source: Path, build_timeout_s: float) -> None:
        """Import or build the candidate, with everything of our own that starts slowly started before."""
        self._prime()
        if source.suffix == ".py":
            self._function = imported(source, self._entry, self._adapter, self._adapter_spec)
            return
        library = native.build(source, Path.cwd(), build_timeout_s)
        self._call_native = native.bind(library, self._entry, self._arguments, self.device != "cpu")
        self._function = self._native

    def _prime(self) -> None:
        """Make the device load what drawing, keeping and fingerprinting need, so that no first call pays for it."""
        values = draw([Spec("normal", (64, 64), "float16", {"scale": 1.0, "shift": 0.0})], [], 1, self.device)
        values.guards_intact()
        kept = [t.clone() for t in values.tensors()]
        _same_bits(kept[0], values.tensors()[0])
        fingerprint(kept)
        self._clock.sample(lambda: None, 10.0, warm=False)

    def workload(self, message: dict[str, Any]) -> None:
        """Take on another workload: recipes of the inputs, and the shapes of the outputs for a C function."""
        self._inputs = tuple(Spec(**i["spec"]) if "spec" in i else i["value"] for i in message["inputs"])
        self._params = message["params"]
        self._outputs = message["outputs"]
        self._pin(sum(o["bytes"] + 64 for o in self._outputs))
        self._literals = [_from_shared(self._shared, m).to(self.device, copy=True) for m in message["literals"]]
        self._kept.clear()
        self._previous.clear()

    def _pin(self, size: int) -> None:
        """Pin the part of the shared memory that outputs go to: copies from the device become ten times faster."""
        if self.device == "cpu" or size <= self._pinned:
            return
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._shared))
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if self._pinned:
            runtime.cudaHostUnregister(start)
        self._pinned = size if int(runtime.cudaHostRegister(start, size, 0)) == 0 else 0

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        """One checked call: poisoned memory, watched inputs, outputs copied out."""
        inputs = self._draw(message) if message["first_seed"] is None else self._draw_again(message)
        before = [t.clone() for t in inputs.tensors()]
        state = _global_state()
        with _Poison(message["poison"], self._outputs, self.device):
            out = self._run(inputs, own_stream=message["own_stream"])
        outputs = self._normalise(out, inputs)
        violations = [*self._watched(inputs, before), *_state_changes(state)]
        return {"outputs": self._store(outputs), "violations": violations}

    def prepare(self, message: dict[str, Any]) -> dict[str, Any]:
        """Draw the inputs of the next timed call, so that the harness can evict the caches before it."""
        self._prepared = {message["seed"]: self._watch(message)}
        return {}

    def _watch(self, message: dict[str, Any]) -> tuple[Guarded, list[torch.Tensor], list[int], dict[str, Any]]:
        """Inputs, those that must not change, their fingerprint, and the global state."""
        inputs = self._draw(message)
        free = {*self._mutates, *self._scratch}
        watched = [t for i, t in enumerate(inputs.args) if isinstance(t, torch.Tensor) and i not in free]
        return inputs, watched, fingerprint(watched), _global_state()

    def sample(self, message: dict[str, Any]) -> dict[str, Any]:
        """One timed call on fresh values, its output kept for the harness to ask for, and fingerprinted at once."""
        prepared = self._prepared.pop(message["seed"], None)
        inputs, watched, before, state = prepared or self._watch(message)
        args = inputs.args
        kept, sample = self._clock.sample(
            lambda: self._function(*args),
            message["spin_us"],
            message["warm"],
            before=_late(inputs.tensors()),
            after=lambda out: [t.detach().clone() for t in self._normalise(out, inputs)],
        )
        if fingerprint(watched) != before or not inputs.guards_intact():
            raise Structure("INCORRECT_NUMERICAL", "a timed call changed an input, or memory beside it")
        for kind, text in _state_changes(state):
            raise Structure(kind, f"in a timed call {text}")
        if message["keep"]:
            self._kept[message["seed"]] = kept
        return {"us": sample.us, "host_us": sample.host_us, "tail_us": sample.tail_us, "print": fingerprint(kept)}

    def warm(self, message: dict[str, Any]) -> dict[str, Any]:
        """Times of repeated calls on the same inputs, caches warm."""
        args = self._draw(message).args
        times = []
        for _ in range(message["count"] + 1):
            _, sample = self._clock.sample(lambda: self._function(*args), message["spin_us"], warm=True)
            times.append(sample.us)
        return {"us": times[1:]}

    def fetch(self, message: dict[str, Any]) -> dict[str, Any]:
        """The output of one earlier timed call, and what it hashes to now."""
        kept = self._kept[message["seed"]]
        return {"outputs": self._store(kept), "print": fingerprint(kept)}

    def forget(self, _: dict[str, Any]) -> dict[str, Any]:
        """Drop the kept outputs."""
        self._kept.clear()
        return {}

    def operators(self, message: dict[str, Any]) -> dict[str, Any]:
        """Torch's own operators that compute in one call, whatever names the candidate calls them by."""
        args = self._draw(message).args
        with Operators() as seen:
            self._function(*args)
            _synchronise(self.device)
        return {"names": sorted(seen.names)[:20]}

    def profile(self, message: dict[str, Any]) -> dict[str, Any]:
        """Device kernels of one call, through torch.profiler."""
        from torch.profiler import ProfilerActivity, profile

        args = self._draw(message).args
        self._function(*args)
        kinds = [ProfilerActivity.CPU] if self.device == "cpu" else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=kinds) as session:
            self._function(*args)
            _synchronise(self.device)
        return {"kernels": _kernel_rows(session, self.device)}

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
            _synchronise(self.device)
            return out
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = self._function(*inputs.args)
        stream.synchronize()
        return out

    def _native(self, *args: Any) -> Any:
        """Call a C function: the outputs are allocated here, the params are those of the workload."""
        values: dict[str, Any] = {**self._params, **{f"in{i}": a for i, a in enumerate(args)}}
        outputs = [
            torch.empty(o["shape"], dtype=getattr(torch, o["dtype"]), device=self.device)
            for o in self._outputs[len(self._mutates) :]
        ]
        self._call_native({**values, **{f"out{i}": o for i, o in enumerate(outputs)}})
        return tuple(outputs)

    def _normalise(self, out: Any, inputs: Guarded) -> list[torch.Tensor]:
        """The outputs as plain tensors, mutated inputs first.

        Raises:
            Structure: something else than plain, dense, materialised tensors of their own memory came back.
        """
        returned = list(out) if type(out) in (tuple, list) else [] if out is None else [out]
        for position, tensor in enumerate(returned):
            _check_plain(tensor, position, self.device)
        self._check_alias(returned, inputs)
        return [*(inputs.args[i] for i in self._mutates), *returned]

    def _check_alias(self, returned: list[torch.Tensor], inputs: Guarded) -> None:
        kept = [a for i, a in enumerate(inputs.args) if isinstance(a, torch.Tensor) and i not in self._scratch]
        own = {t.untyped_storage().data_ptr() for t in kept}
        for position, tensor in enumerate(returned):
            if tensor.numel() and tensor.untyped_storage().data_ptr() in own:
                raise Structure("INCORRECT_NUMERICAL", f"output {position} shares the memory of an input")

    def _watched(self, inputs: Guarded, before: list[torch.Tensor]) -> list[list[str]]:
        found = []
        if not inputs.guards_intact():
            found.append(["INCORRECT_NUMERICAL", "it wrote outside its inputs"])
        tensors = [i for i, a in enumerate(inputs.args) if isinstance(a, torch.Tensor)]
        for position, copy in zip(tensors, before, strict=True):
            if position not in (*self._mutates, *self._scratch) and not _same_bits(inputs.args[position], copy):
                found.append(["INCORRECT_NUMERICAL", f"it changed its input {position}"])
        return found

    def _store(self, outputs: list[torch.Tensor]) -> list[dict[str, Any]]:
        """Copy outputs to the shared memory, as many as fit; the harness compares the bytes."""
        offset = 0
        stored = []
        for tensor in outputs:
            size = tensor.numel() * tensor.element_size()
            if offset + size > len(self._shared):
                raise Structure("INCORRECT_SHAPE", f"the outputs are larger than expected ({offset + size} bytes)")
            meta = {"shape": list(tensor.shape), "dtype": _dtype_name(tensor), "offset": offset, "bytes": size}
            _from_shared(self._shared, meta).copy_(tensor)
            stored.append(meta)
            offset += -(-size // 64) * 64
        return stored


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that go through torch's dispatcher, those left out that only allocate or look differently."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).removeprefix("aten.").split(".")[0]
        if name not in _NO_WORK and not function.is_view:
            self.names.add(name)
        return function(*args, **(kwargs or {}))


class _Poison:
    """Fill memory that the candidate may get for its outputs with a pattern."""

    def __init__(self, byte: int, outputs: list[dict[str, Any]], device: str) -> None:
        self._byte, self._outputs, self._device = byte, outputs, device

    def __enter__(self) -> None:
        if self._device == "cpu":
            _perturb(self._byte)
            return
        blocks = [
            torch.full((max(1, o["bytes"]),), self._byte, dtype=torch.uint8, device=self._device)
            for o in self._outputs
            for _ in range(2)
        ]
        del blocks

    def __exit__(self, *_: object) -> None:
        if self._device == "cpu":
            _perturb(0)


def fingerprint(tensors: list[torch.Tensor]) -> list[int]:
    """A cheap check sum of the tensors' bits, to see whether an output changed after it was returned."""
    sums = []
    for tensor in tensors:
        flat = tensor.detach().contiguous().flatten().view(torch.uint8)
        words = flat.view(torch.int64) if flat.numel() % 8 == 0 else flat.to(torch.int64)
        sums += [int(words.sum()), int(words[::3].sum())]
    return sums


def _late(tensors: list[torch.Tensor]) -> Callable[[], None]:
    """Make a few elements of each input wrong now, and return what makes them right.

    Called between the wait and the start of a timed call, it keeps a candidate from working ahead on another stream:
    what has been read too early is wrong.
    """
    pieces: list[tuple[torch.Tensor, torch.Tensor]] = []
    for tensor in tensors:
        if tensor.is_contiguous() and tensor.numel():
            piece = tensor.view(-1)[:: max(_LATE_STRIDE, tensor.numel() // _LATE_MOST)]
            pieces.append((piece, piece.clone()))
            piece.copy_(_other_values(piece))

    def finish() -> None:
        for piece, values in pieces:
            piece.copy_(values)

    return finish


def _other_values(values: torch.Tensor) -> torch.Tensor:
    """Values that differ, and that are as legal: of integers, which may be indices, only their order changes."""
    return -values - 1 if values.dtype.is_floating_point else values.roll(1)


def serve(channel: Channel, shared_fd: int, isolation: dict[str, str]) -> None:
    """Answer the harness until it closes the channel; every message is answered once."""
    _mallopt(_M_MMAP_MAX, 0)
    _mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
    channel.send({"op": "ready", "isolation": isolation})
    candidate: Candidate | None = None
    shared: mmap.mmap | None = None
    while True:
        try:
            message = channel.receive()
        except ChannelClosed:
            return
        try:
            if message["op"] == "bye":
                channel.send({"op": "bye"})
                return
            if message["op"] == "load":
                shared = mmap.mmap(shared_fd, message["shared_bytes"])
                candidate = Candidate(message, shared)
                candidate.load(Path.cwd() / message["source"], message["build_timeout_s"])
                reply: dict[str, Any] = {}
            elif message["op"] == "workload":
                assert candidate is not None
                candidate.workload(message)
                reply = {}
            else:
                reply = getattr(candidate, message["op"])(message)
        except Structure as error:
            reply = {"fault": {"kind": error.kind, "text": str(error)}}
        except BaseException as error:  # a candidate may raise SystemExit or KeyboardInterrupt too
            reply = {"fault": {"kind": _kind(error, message["op"]), "text": _explain(error)}}
        channel.send({"op": message["op"], **reply})


def imported(source: Path, entry: str, adapter: str, adapter_spec: dict[str, Any]) -> Callable[..., Any]:
    """The function of a Python candidate that takes the problem's inputs."""
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if adapter:
        adapters.prepare(adapter, {**adapter_spec, "folder": str(source.parent)})
    sys.modules[source.stem] = module
    spec.loader.exec_module(module)
    if adapter:
        return adapters.entry(adapter, module, adapter_spec)
    function = getattr(module, entry, None)
    if not callable(function):
        raise native.BuildError(f"the kernel file defines no function {entry!r}, which the problem calls")
    return function  # type: ignore[no-any-return]


def _check_plain(tensor: Any, position: int, device: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise Structure("INCORRECT_SHAPE", f"output {position} is a {type(tensor).__name__}, expected a tensor")
    if type(tensor) is not torch.Tensor:
        raise Structure(
            "CHEATED", f"output {position} is a {type(tensor).__name__}, a tensor subclass that may be lazy"
        )
    if tensor.__dict__ or tensor.layout is not torch.strided:
        raise Structure("CHEATED", f"output {position} carries attributes of its own or is not dense")
    if tensor.device.type != torch.device(device).type:
        raise Structure("INCORRECT_SHAPE", f"output {position} is on {tensor.device}, expected {device}")
    if tensor.numel() and tensor.untyped_storage().nbytes() == 0:
        raise Structure("CHEATED", f"output {position} has no memory behind it")


def _from_shared(shared: mmap.mmap, meta: dict[str, Any]) -> torch.Tensor:
    """A CPU tensor over a piece of the shared memory."""
    dtype: torch.dtype = getattr(torch, meta["dtype"])
    if meta["bytes"] == 0:
        return torch.empty(meta["shape"], dtype=dtype)
    flat = torch.frombuffer(shared, dtype=torch.uint8, count=meta["bytes"], offset=meta["offset"])
    return flat.view(dtype).view(meta["shape"])


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _perturb(byte: int) -> None:
    # glibc fills with the complement of the byte that it is given.
    _mallopt(_M_PERTURB, (byte ^ 0xFF) if byte else 0)


def _mallopt(parameter: int, value: int) -> None:
    """Set a parameter of glibc's allocator; other C libraries have none, and go without."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(parameter, value)


def _global_state() -> dict[str, Any]:
    """Everything global that a candidate might change to its advantage, or to the reference's."""
    state: dict[str, Any] = {
        "the random number generator's state": torch.get_rng_state(),
        "torch's default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "grad mode": torch.is_grad_enabled(),
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "the float32 matmul precision": torch.get_float32_matmul_precision(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["the CUDA random number generator's state"] = torch.cuda.get_rng_state()
        state["the current CUDA stream"] = torch.cuda.current_stream().cuda_stream
        state["torch.backends.cudnn.allow_tf32"] = torch.backends.cudnn.allow_tf32
        matmul = torch.backends.cuda.matmul
        state["reduced precision reductions"] = (
            matmul.allow_fp16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction,
        )
    return state


def _state_changes(before: dict[str, Any]) -> list[list[str]]:
    after = _global_state()
    return [["CHEATED", f"it changed {name}"] for name, value in before.items() if not _equal(value, after[name])]


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


def _kernel_rows(session: Any, device: str) -> list[dict[str, Any]]:
    on_gpu = device != "cpu"
    rows = []
    for event in session.key_averages():
        us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if us > 0 and (not on_gpu or event.device_type.name != "CPU"):
            rows.append({"name": event.key, "calls": event.count, "total_us": float(us)})
    return sorted(rows, key=lambda r: -float(r["total_us"]))[:40]


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
    return f"{type(error).__name__}: {str(error)[-1200:]}{place}".replace(here + os.sep, "")
