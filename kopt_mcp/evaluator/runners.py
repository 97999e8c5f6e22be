"""Runners before they know their candidate: forked, shut in, their device made ready, some of them ahead of time."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kopt_mcp.evaluator import sandbox
from kopt_mcp.evaluator.answers import checked
from kopt_mcp.evaluator.caches import Caches, copied
from kopt_mcp.evaluator.channel import Channel, ChannelClosed, ChannelForged, ChannelTimeout, plain
from kopt_mcp.evaluator.clearing import remove
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.loops import Loop, Standing
from kopt_mcp.evaluator.on_device import Driver
from kopt_mcp.evaluator.seals import Seal, Seals
from kopt_mcp.evaluator.shared import SHARED_BYTES, SharedMemory
from kopt_mcp.evaluator.turns import Turn
from kopt_mcp.evaluator.zygote import Zygote

_READY_S = 120.0
"""Longest time for a runner's start; a CUDA context takes a third of a second."""
_MOST_CPU_S = 24 * 3600
"""Until a candidate's own limit is known, when it is loaded."""
_LOG_BYTES = 32 << 10
_STARTING_AT_ONCE = 6
_KEPT_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "ROCM_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)


@dataclass(frozen=True)
class Gpu:
    """What a runner gets of the machine's GPUs: the one that it is for, where the others can be kept from it."""

    index: int = 0
    nodes: Sequence[str] = sandbox.GPU_NODES
    """Names below /dev."""
    visible: str = ""
    """For CUDA_VISIBLE_DEVICES, if it is to be another one than ours."""


class Place:
    """Where runners live, and on what."""

    def __init__(
        self, zygote: Zygote, folder: Path, device: str, cache_bytes: int, seed_cache: Path, gpu: Gpu | None = None
    ) -> None:
        """`seed_cache` is what every compile cache starts from: nothing of any candidate's."""
        self.zygote, self.folder, self.device, self.cache_bytes = zygote, folder, device, cache_bytes
        self.seed_cache, self.gpu = seed_cache, gpu or Gpu()
        self.sealed = device != "cpu"
        """Whether the evaluator's code in a runner is watched: where the harness does not hold the clock itself."""
        self.turn = Turn(zygote.pid)
        self.driver: Driver | None = None
        """Where outputs may stay on the GPU until they are read: what reads them."""
        self.caches = Caches(folder / "caches")
        self.spares = Spares(self)


class Runner:
    """One runner: its process, its folder, its shared memory, and the channel to it."""

    def __init__(self, place: Place) -> None:
        self.isolation: dict[str, str] = {}
        self.seals: Seals | None = None
        self.loop: Loop | None = None
        self._place = place
        self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=place.folder))
        self.cache = self.folder / "cache"
        self.log = _Log()
        self.shared = SharedMemory()
        (self.folder / "tmp").mkdir()
        copied(place.seed_cache, self.cache)
        ours, theirs = socket.socketpair()
        nonce = secrets.token_hex(16)
        self.pid = place.zygote.spawn(self._description(nonce), [theirs.fileno(), self.log.fd, self.shared.fd])
        place.turn.starts(self.pid)
        self._line = os.fstat(theirs.fileno()).st_ino
        theirs.close()
        self.log.started()
        self.channel = Channel(ours, nonce, doubted=True)
        self.main_pid = self.pid
        """The process that the candidate is called in: below the first one, where processes are hidden."""

    def ready(self) -> Runner:
        """Wait until it is shut in and its device ready.

        Raises:
            Fault: it is not.
        """
        try:
            answer = checked("ready", self.channel.receive(_READY_S))
            self.isolation = answer["isolation"]
        except Fault:
            self.reap(0.0)
            raise
        except (ChannelTimeout, ChannelClosed, ChannelForged) as error:
            code = self.reap(0.2)["code"]
            raise Fault(
                "RUNTIME_ERROR", f"a process for the candidate did not start (code {code}): {error} {self.log.tail()}"
            ) from None
        self._place.turn.ready(self.pid)
        if self.hidden:
            self.main_pid = [*sandbox.descendants(self.pid), self.pid][1]
        self._seal([Seal(*seal) for seal in answer.get("seals", [])], answer.get("standing"))
        return self

    def _seal(self, seals: list[Seal], standing: list[int] | None) -> None:
        """Note what is in its memory now, before it knows any candidate."""
        if not seals:
            return
        try:
            self.seals = Seals(self.main_pid, seals)
            self.loop = Loop(self.main_pid, Standing(*standing) if standing else None, self._line)
            self.isolation["seals"] = "on"
        except OSError as error:
            self.isolation["seals"] = f"off: {os.strerror(error.errno or 0)}"

    @property
    def hidden(self) -> bool:
        """Whether it lives in a process namespace, in which it is the second below the process that is known here."""
        return self.isolation.get("processes") == "hidden"

    @property
    def own_processes(self) -> int:
        """How many processes below the known one are the runner itself, and not started by a candidate."""
        return 2 if self.hidden else 0

    def alive(self) -> bool:
        """Whether it has not ended on its own."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        return not Path("/proc/self").exists()

    def say_goodbye(self) -> bool:
        """Ask it to end, without waiting for that; whether it answered."""
        self._place.turn.leaves(self.pid)
        try:
            self.channel.send({"op": "bye"})
            return bool(self.channel.receive(timeout_s=1.0).get("op") == "bye")
        except (ChannelClosed, ChannelForged, ChannelTimeout):
            return False

    def reap(self, grace_s: float) -> dict[str, Any]:
        """Wait for its end up to `grace_s`, then end it and all that it started; how it ended."""
        self.channel.close()
        ended = self._place.zygote.reap(self.pid, grace_s)
        self._place.turn.ended(self.pid)
        self.log.close()
        self.shared.close()
        remove(self.folder)
        return ended

    def _description(self, nonce: str) -> dict[str, Any]:
        folder, cache = str(self.folder), str(self.cache)
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
        if self._place.gpu.visible:
            environment["CUDA_VISIBLE_DEVICES"] = self._place.gpu.visible
        if self._place.device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        return {
            "folder": folder,
            "environment": environment,
            "nonce": nonce,
            "device": self._place.device,
            "gpu": asdict(self._place.gpu),
            "cache_bytes": self._place.cache_bytes,
            "shared_bytes": SHARED_BYTES,
            "sealed": self._place.sealed,
            "hide_processes": self._place.device == "cpu",  # the CUDA driver finds itself in /proc by its number
            "cpu_s": _MOST_CPU_S,
            "readable": sandbox.interpreter_folders(),
            "writable": [folder],
        }


class Spares:
    """Runners made ready ahead of time, in which no candidate has been; and the ends of those that are done with.

    Nothing is started or awaited here while calls are timed: see `settle`.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ready: deque[Future[Runner]] = deque()
        self._ending: list[Future[Any]] = []
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_STARTING_AT_ONCE)

    def take(self) -> Runner:
        """One that is ready, or else a new one.

        Raises:
            Fault: none can be made ready.
        """
        while (future := self._next()) is not None:
            with contextlib.suppress(Fault):
                runner = future.result()
                if runner.alive():
                    return runner
                runner.reap(0.0)
        return Runner(self._place).ready()

    def restock(self, count: int) -> None:
        """Have `count` of them made ready, in the background."""
        with self._lock:
            for _ in range(count - len(self._ready)):
                self._ready.append(self._pool.submit(lambda: Runner(self._place).ready()))

    def end(self, runner: Runner, grace_s: float) -> None:
        """Have a runner reaped in the background."""
        with self._lock:
            self._ending.append(self._pool.submit(runner.reap, grace_s))

    def settle(self) -> None:
        """Wait until nothing is being started or ended."""
        with self._lock:
            pending = [*self._ready, *self._ending]
            self._ending.clear()
        wait(pending)

    def close(self) -> None:
        """End them all."""
        self.settle()
        while (future := self._next()) is not None:
            with contextlib.suppress(Fault):
                future.result().reap(0.0)
        self._pool.shutdown()

    def _next(self) -> Future[Runner] | None:
        with self._lock:
            return self._ready.popleft() if self._ready else None


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
        return plain(self._kept.decode(errors="replace").strip()[-600:])

    def close(self) -> None:
        """Wait for the end of the stream, which comes when the last writer is gone."""
        self._thread.join(timeout=5)

    def _drain(self) -> None:
        while chunk := os.read(self._read, 1 << 16):
            self._kept = (self._kept + chunk)[-_LOG_BYTES:]
        os.close(self._read)
