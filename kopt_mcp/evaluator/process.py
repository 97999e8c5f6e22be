"""The harness's handle on one runner: start it, ask it, read its bytes, end it.

Whatever goes wrong on the other side becomes a `Fault` with an evaluation status: a hang, a crash, an early exit, a
forged message, an exception in the candidate.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kopt_mcp.evaluator import sandbox
from kopt_mcp.evaluator.channel import Channel, ChannelClosed, ChannelForged, ChannelTimeout
from kopt_mcp.evaluator.zygote import Zygote
from kopt_mcp.problem import Case, Problem, Spec

SHARED_BYTES = 16 << 30
"""Size of the shared memory; sparse, so that only what is written is allocated."""
_LOG_BYTES = 32 << 10
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
        self.fd = os.memfd_create("kopt") if self._file is None else self._file.fileno()
        os.ftruncate(self.fd, SHARED_BYTES)
        self._map = mmap.mmap(self.fd, SHARED_BYTES)

    def read(self, meta: dict[str, Any], device: str) -> torch.Tensor:
        """A private copy, on `device`, of one output described by the runner.

        Raises:
            Fault: the description makes no sense.
        """
        dtype = getattr(torch, str(meta["dtype"]), None)
        count = _elements(meta["shape"])
        if not isinstance(dtype, torch.dtype) or count < 0 or count * dtype.itemsize != meta["bytes"]:
            raise Fault("CHEATED", "the runner described an output whose size does not match its shape")
        if not 0 <= meta["offset"] <= SHARED_BYTES - meta["bytes"]:
            raise Fault("CHEATED", "the runner described an output outside the shared memory")
        if meta["bytes"] == 0:
            return torch.empty(meta["shape"], dtype=dtype, device=device)
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=meta["bytes"], offset=meta["offset"])
        return flat.to(device, copy=True).view(dtype).view(meta["shape"])

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


@dataclass(frozen=True)
class Place:
    """Where runners live, and on what."""

    zygote: Zygote
    shared: SharedMemory
    folder: Path
    device: str
    cache_bytes: int


class CandidateProcess:
    """One runner with one candidate loaded."""

    def __init__(self, place: Place, problem: Problem, source: Source, timeout_s: float, cold: bool = False) -> None:
        self.isolation: dict[str, str] = {}
        self._place = place
        self._problem = problem
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=place.folder))
        self._cache = self._folder / "cache" if cold else place.folder / f"cache-{source.sha256[:16]}"
        self._closed = False
        self._case: Case | None = None
        self._log = _Log()
        (self._folder / "tmp").mkdir()
        self._cache.mkdir(exist_ok=True)
        name = f"kernel{source.suffix}"
        (self._folder / name).write_bytes(source.content)
        ours, theirs = socket.socketpair()
        nonce = secrets.token_hex(16)
        self._pid = place.zygote.spawn(
            self._description(nonce, timeout_s), [theirs.fileno(), self._log.fd, place.shared.fd]
        )
        theirs.close()
        self._log.started()
        self._channel = Channel(ours, nonce)
        self.isolation = self._receive("start")["isolation"]
        self.ask(
            "load",
            source=name,
            entry=problem.entry,
            device=place.device,
            arguments=list(problem.arguments),
            mutates=list(problem.mutates),
            cache_bytes=place.cache_bytes,
            shared_bytes=SHARED_BYTES,
            build_timeout_s=timeout_s,
        )

    def __enter__(self) -> CandidateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def workload(self, case: Case, outputs: list[dict[str, Any]]) -> None:
        """Make the runner ready for a workload, if it is not; `outputs` describes what the reference returns."""
        if case is self._case:
            return
        inputs = [{"spec": asdict(i)} if isinstance(i, Spec) else {"value": i} for i in case.inputs]
        literals = self._place.shared.write(list(case.literals))
        params = {k: v for k, v in case.params.items() if isinstance(v, (int, float))}
        self.ask("workload", inputs=inputs, params=params, outputs=outputs, literals=literals)
        self._case = case

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One request and its answer.

        Raises:
            Fault: the candidate failed, hung, died or lied about the protocol.
        """
        try:
            self._channel.send({"op": op, **fields})
        except ChannelClosed:
            raise self._crash(op) from None
        reply = self._receive(op)
        if "fault" in reply:
            raise Fault(str(reply["fault"]["kind"]), str(reply["fault"]["text"])[:2000])
        return reply

    def outputs(self, reply: dict[str, Any]) -> list[torch.Tensor]:
        """The outputs that an answer describes, copied out of the shared memory."""
        return [self._place.shared.read(meta, self._place.device) for meta in reply["outputs"]]

    def close(self) -> str:
        """End the runner and all it started; a sentence if it did not end by itself, else empty."""
        if self._closed:
            return ""
        self._closed = True
        said_goodbye = self._say_goodbye()
        self._channel.close()
        ended = self._place.zygote.reap(self._pid, grace_s=1.0 if said_goodbye else 0.0)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if ended["leftovers"]:
            return f"it left {ended['leftovers']} process(es) running, which were ended"
        if said_goodbye and ended["code"] != 0:
            return "it did not end by itself"
        return ""

    def _say_goodbye(self) -> bool:
        try:
            self._channel.send({"op": "bye"})
            return bool(self._channel.receive(timeout_s=1.0).get("op") == "bye")
        except (ChannelClosed, ChannelForged, ChannelTimeout):
            return False

    def _receive(self, op: str) -> dict[str, Any]:
        try:
            return self._channel.receive(max(0.0, self._deadline - time.monotonic()))
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
            "cpu_s": int(timeout_s * (os.cpu_count() or 1)) + 10,
            "readable": sandbox.interpreter_folders(),
            "writable": [folder, cache],
        }


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


def _elements(shape: Any) -> int:
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        return -1
    count = 1
    for n in shape:
        count *= n
    return count


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
