"""The harness's handle on one runner: start it, ask it, read its bytes, end it.

Whatever goes wrong on the other side becomes a `Fault` with an evaluation status: a hang, a crash, an early exit, a
forged message, an exception in the candidate.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import mmap
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from kopt_mcp.evaluator import binary, sandbox
from kopt_mcp.evaluator.channel import Channel, ChannelClosed, ChannelForged, ChannelTimeout
from kopt_mcp.evaluator.zygote import Zygote
from kopt_mcp.problem import Case, Problem, Spec

SHARED_BYTES = 16 << 30
"""Size of the shared memory; sparse, so that only what is written is allocated."""
_LOG_BYTES = 32 << 10
_LIFE = 10
"""How many times the longest allowed call a process may compute in all."""
_KEPT_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)
_REPORTABLE = (
    "INCORRECT_SHAPE",
    "INCORRECT_DTYPE",
    "INCORRECT_NUMERICAL",
    "COMPILE_ERROR",
    "RUNTIME_ERROR",
    "OUT_OF_MEMORY",
    "CHEATED",
)
"""What a runner may say about itself. It can say nothing in its own favour: `PASSED` is decided here alone."""


class Fault(Exception):
    """The candidate's fault: an evaluation status and a sentence."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class SharedMemory:
    """Memory that a runner writes outputs into and the harness reads them from."""

    def __init__(self) -> None:
        # Without memfd (macOS) an unlinked file; the object is kept, since closing it would close the descriptor.
        self._file = None if hasattr(os, "memfd_create") else tempfile.TemporaryFile()  # noqa: SIM115
        self.fd = _memory() if self._file is None else self._file.fileno()
        os.ftruncate(self.fd, SHARED_BYTES)
        if self._file is None:  # a runner that made it smaller would have the harness die of SIGBUS
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self.fd, SHARED_BYTES)
        self._pinned = 0

    def close(self) -> None:
        """Give the memory back; a runner's mapping of it ends with the runner."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._start())  # type: ignore[no-untyped-call]
        self._map.close()
        if self._file is None:
            os.close(self.fd)
        else:
            self._file.close()

    def read(self, meta: dict[str, Any], device: str) -> torch.Tensor:
        """A private copy, on `device`, of one output described by the runner.

        Raises:
            Fault: the description makes no sense.
        """
        if not _is_description(meta):
            raise Fault("CHEATED", "the runner described an output that is none")
        dtype = getattr(torch, meta["dtype"], None)
        if not isinstance(dtype, torch.dtype) or math.prod(meta["shape"]) * dtype.itemsize != meta["bytes"]:
            raise Fault("CHEATED", "the runner described an output whose size does not match its shape")
        if meta["offset"] > SHARED_BYTES - meta["bytes"]:
            raise Fault("CHEATED", "the runner described an output outside the shared memory")
        if meta["bytes"] == 0:
            return torch.empty(meta["shape"], dtype=dtype, device=device)
        if device != "cpu":
            self._pin(meta["offset"] + meta["bytes"])
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=meta["bytes"], offset=meta["offset"])
        return flat.to(device, copy=True).view(dtype).view(meta["shape"])

    def _pin(self, size: int) -> None:
        """Pin what is read often, so that copies to the device are fast; without it they are merely slower."""
        if size <= self._pinned:
            return
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if self._pinned:
            runtime.cudaHostUnregister(self._start())
        self._pinned = size if int(runtime.cudaHostRegister(self._start(), size, 0)) == 0 else 0

    def _start(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def write(self, tensors: list[torch.Tensor]) -> list[dict[str, Any]]:
        """Put tensors there for the runner to read; returns their descriptions."""
        offset, metas = 0, []
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            if size:
                torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=offset).copy_(
                    tensor.contiguous().flatten().view(torch.uint8)
                )
            metas.append({"shape": list(tensor.shape), "dtype": _name(tensor.dtype), "offset": offset, "bytes": size})
            offset += -(-size // 64) * 64
        return metas


@dataclass(frozen=True)
class Source:
    """A candidate's file: its bytes as they were hashed, and its kind."""

    content: bytes
    sha256: str
    suffix: str


class Turn:
    """Whose turn it is: every other runner is stopped, so that none can slow down the one that is being timed."""

    def __init__(self) -> None:
        self._holder = 0

    def take(self, pid: int, zygote: int) -> None:
        """Let the runner `pid` go on, and stop all others and whatever they started."""
        if self._holder == pid:
            return
        self._holder = pid
        ours = {pid, *sandbox.descendants(pid)}
        for other in set(sandbox.descendants(zygote)) - ours:
            _signal(other, signal.SIGSTOP)
        wake(pid)

    def share(self, pid: int) -> None:
        """Let the runner `pid` go on beside the others, where nothing is being timed."""
        self._holder = 0
        wake(pid)


def wake(pid: int) -> None:
    """Let a runner and what it started go on."""
    for one in [pid, *sandbox.descendants(pid)]:
        _signal(one, signal.SIGCONT)


def _signal(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, what)


@dataclass(frozen=True)
class Place:
    """Where runners live, and on what."""

    zygote: Zygote
    folder: Path
    device: str
    cache_bytes: int
    seed_cache: Path
    """What every compile cache starts from: nothing of any candidate's."""
    turn: Turn = field(default_factory=Turn)


class CandidateProcess:
    """One runner with one candidate loaded."""

    def __init__(self, place: Place, problem: Problem, source: Source, timeout_s: float, cold: bool = False) -> None:
        self.isolation: dict[str, str] = {}
        self._place = place
        self._problem = problem
        self._timeout_s = timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=place.folder))
        self._cache = self._folder / "cache" if cold else place.folder / f"cache-{source.sha256[:16]}"
        self._closed = False
        self._leaving: bool | None = None
        self._strays = 0
        self._case: Case | None = None
        self._log = _Log()
        self._shared = SharedMemory()
        (self._folder / "tmp").mkdir()
        if not self._cache.exists():
            shutil.copytree(place.seed_cache, self._cache)
        name = f"kernel{source.suffix}"
        (self._folder / name).write_bytes(source.content)
        ours, theirs = socket.socketpair()
        nonce = secrets.token_hex(16)
        self._pid = place.zygote.spawn(
            self._description(nonce, timeout_s), [theirs.fileno(), self._log.fd, self._shared.fd]
        )
        theirs.close()
        self._log.started()
        self._channel = Channel(ours, nonce)
        self._name = name

    def start(self) -> CandidateProcess:
        """Wait for the runner and have it load the candidate. Several processes may start at once, in threads.

        Raises:
            Fault: see `ask`.
        """
        try:
            self.isolation = self._receive("start")["isolation"]
            self._load()
        except BaseException:
            self.close()
            raise
        return self

    def _load(self) -> None:
        self.ask(
            "load",
            alone=False,
            source=self._name,
            entry=self._problem.entry,
            adapter=self._problem.adapter,
            adapter_spec=dict(self._problem.adapter_spec),
            device=self._place.device,
            arguments=list(self._problem.arguments),
            mutates=list(self._problem.mutates),
            scratch=list(self._problem.scratch),
            cache_bytes=self._place.cache_bytes,
            shared_bytes=SHARED_BYTES,
            build_timeout_s=self._timeout_s,
        )

    def __enter__(self) -> CandidateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def workload(self, case: Case, outputs: list[dict[str, Any]], alone: bool = True) -> None:
        """Make the runner ready for a workload, if it is not; `outputs` describes what the reference returns."""
        if case is self._case:
            return
        inputs = [{"spec": asdict(i)} if isinstance(i, Spec) else {"value": i} for i in case.inputs]
        literals = self._shared.write(list(case.literals))
        params = {k: v for k, v in case.params.items() if isinstance(v, (int, float))}
        self.ask("workload", alone, inputs=inputs, params=params, outputs=outputs, literals=literals)
        self._case = case

    def ask(self, op: str, alone: bool = True, **fields: Any) -> dict[str, Any]:
        """One request and its answer; `alone` stops every other runner, as timing needs it.

        Raises:
            Fault: the candidate failed, hung, died or lied about the protocol.
        """
        if alone:
            self._place.turn.take(self._pid, self._place.zygote.pid)
        else:
            self._place.turn.share(self._pid)
        try:
            self._channel.send({"op": op, **fields})
        except ChannelClosed:
            raise self._crash(op) from None
        reply = self._receive(op)
        if "fault" in reply:
            raise _reported(reply["fault"])
        if not all(fits(reply.get(name)) for name, fits in _ANSWERS.get(op, {}).items()):
            raise Fault("CHEATED", f"the candidate's process gave an answer to {op!r} that is none")
        return reply

    def outputs(self, reply: dict[str, Any]) -> list[torch.Tensor]:
        """The outputs that an answer describes, copied out of the shared memory."""
        return [self._shared.read(meta, self._place.device) for meta in reply["outputs"]]

    def binary(self) -> str | None:
        """Hash of the machine code that the candidate was compiled to, as it lies there now."""
        return binary.digest([self._folder, self._cache], self._place.seed_cache)

    def leave(self) -> None:
        """Ask the runner to end, without waiting for it: several may then end at once."""
        if not self._closed and self._leaving is None:
            # In a process namespace the runner is the second below, and whatever it leaves ends with it.
            own = 2 if self.isolation.get("processes") == "hidden" else 0
            self._strays = len(sandbox.descendants(self._pid)) - own
            self._leaving = self._say_goodbye()

    def close(self) -> str:
        """End the runner and all it started; a sentence if it did not end by itself, else empty."""
        if self._closed:
            return ""
        self.leave()
        self._closed = True
        said_goodbye = bool(self._leaving)
        self._channel.close()
        ended = self._place.zygote.reap(self._pid, grace_s=1.0 if said_goodbye else 0.0)
        self._log.close()
        self._shared.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if left := max(self._strays, ended["leftovers"]):
            return f"it left {left} process(es) running, which were ended"
        if said_goodbye and ended["code"] != 0:
            return "it did not end by itself"
        return ""

    def _say_goodbye(self) -> bool:
        wake(self._pid)
        try:
            self._channel.send({"op": "bye"})
            return bool(self._channel.receive(timeout_s=1.0).get("op") == "bye")
        except (ChannelClosed, ChannelForged, ChannelTimeout):
            return False

    def _receive(self, op: str) -> dict[str, Any]:
        try:
            return self._channel.receive(self._timeout_s)
        except ChannelTimeout:
            self._end()
            raise Fault("TIMEOUT", f"no answer to {op!r} within {self._timeout_s:g} s; the process was ended") from None
        except ChannelForged as error:
            self._end()
            raise Fault("CHEATED", f"the candidate's process sent {error}") from None
        except ChannelClosed:
            raise self._crash(op) from None

    def _crash(self, op: str) -> Fault:
        ended = self._end()
        code = int(ended.get("code", 0))
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        tail = self._log.tail()
        return Fault("RUNTIME_ERROR", f"the candidate's process {how} during {op!r}" + (f": {tail}" if tail else ""))

    def _end(self) -> dict[str, Any]:
        if self._closed:
            return {}
        self._closed = True
        self._channel.close()
        ended = self._place.zygote.reap(self._pid, grace_s=0.2)
        self._log.close()
        self._shared.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return ended

    def _description(self, nonce: str, timeout_s: float) -> dict[str, Any]:
        folder, cache = str(self._folder), str(self._cache)
        environment = {k: os.environ[k] for k in _KEPT_ENVIRONMENT if k in os.environ}
        environment |= {
            "HOME": folder,
            "TMPDIR": f"{folder}/tmp",
            "XDG_CACHE_HOME": cache,
            "TRITON_HOME": cache,
            "TRITON_CACHE_DIR": f"{cache}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "TORCH_EXTENSIONS_DIR": f"{cache}/extensions",
            "CUDA_CACHE_PATH": f"{cache}/cuda",
        }
        if self._place.device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        return {
            "folder": folder,
            "environment": environment,
            "nonce": nonce,
            "hide_processes": self._place.device == "cpu",  # the CUDA driver finds itself in /proc by its number
            "cpu_s": int(_LIFE * timeout_s * (os.cpu_count() or 1)),
            "readable": sandbox.interpreter_folders(),
            "writable": [folder, cache],
        }


def _reported(fault: Any) -> Fault:
    """The fault that a runner reports, if it is one that a runner may report."""
    kind, text = (fault.get("kind"), fault.get("text")) if isinstance(fault, dict) else (None, None)
    if kind not in _REPORTABLE:
        return Fault("CHEATED", f"the candidate's process reported {str(kind)[:40]!r} about itself")
    return Fault(kind, str(text)[:2000])


class _Log:
    """What the candidate prints: drained so that it cannot block, kept only at its end."""

    def __init__(self) -> None:
        self._read, self.fd = os.pipe()
        self._kept = b""
        self._thread = threading.Thread(target=self._drain, daemon=True)

    def started(self) -> None:
        """The writing end now belongs to the runner."""
        os.close(self.fd)
        self._thread.start()

    def tail(self) -> str:
        """The last line or so, for the detail of a crash."""
        text = self._kept.decode(errors="replace").strip()
        return text[-600:]

    def close(self) -> None:
        """Wait for the end of the stream, which comes when the last writer is gone."""
        self._thread.join(timeout=5)

    def _drain(self) -> None:
        while chunk := os.read(self._read, 1 << 16):
            self._kept = (self._kept + chunk)[-_LOG_BYTES:]
        os.close(self._read)


def _memory() -> int:
    return os.memfd_create("kopt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _is_description(meta: Any) -> bool:
    """Whether this describes an output: sizes that are sizes, and a name of a dtype."""
    if not isinstance(meta, dict) or not isinstance(meta.get("shape"), list):
        return False
    sizes = [*meta["shape"], meta.get("bytes"), meta.get("offset")]
    return isinstance(meta.get("dtype"), str) and all(_is_size(n) for n in sizes)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_sums(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int for n in value)


def _is_violations(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, list) and len(v) == 2 and v[0] in _REPORTABLE and isinstance(v[1], str) for v in value
    )


def _is_kernels(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(r, dict) and type(r.get("calls")) is int and _is_number(r.get("total_us")) for r in value
    )


_ANSWERS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "call": {"outputs": lambda v: isinstance(v, list), "violations": _is_violations},
    "sample": {"us": _is_number, "host_us": _is_number, "tail_us": _is_number, "print": _is_sums},
    "warm": {"us": lambda v: isinstance(v, list) and bool(v) and all(map(_is_number, v))},
    "fetch": {"outputs": lambda v: isinstance(v, list), "print": _is_sums},
    "profile": {"kernels": _is_kernels},
    "prepare": {},
    "operators": {"names": lambda v: isinstance(v, list) and len(v) <= 20},
}
"""What an answer must hold, by request: a field that is missing or of another kind is a lie, not a failure of ours."""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
