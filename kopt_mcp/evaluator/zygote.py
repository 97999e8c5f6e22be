"""Fork runners from a process that has torch imported and nothing else: no CUDA context, no secret, no open file.

The harness forks the zygote before it touches a device, and asks it for one runner per evaluation. A fork takes
milliseconds where a fresh import of torch takes seconds. The zygote adopts whatever a candidate leaves behind, and ends
it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from kopt_mcp.evaluator import sandbox
from kopt_mcp.evaluator.channel import ChannelClosed
from kopt_mcp.evaluator.forked import become_runner, close_all_but

_REAP_S = 5.0


class Zygote:
    """The harness's handle on the forking process."""

    def __init__(self, device_kind: str, fork: bool = True) -> None:
        """Fork it from this process, which is quick, or start it afresh, in a second or two.

        Threads do not survive a fork, and OpenMP waits for ever for those that it had: a process that has computed
        anything with torch must not fork.
        """
        ours, theirs = socket.socketpair()
        self.pid = _fork(ours, theirs, device_kind) if fork else _start_afresh(theirs, device_kind)
        theirs.close()
        self._sock = ours
        self._lock = threading.Lock()
        """Runners may start, fail and end at once, and two requests that arrive together are none."""

    def spawn(self, runner: dict[str, Any], fds: list[int]) -> int:
        """Fork a runner with these three descriptors (channel, log, shared memory); return its process id."""
        return int(self._asked({"op": "spawn", **runner}, fds)["pid"])

    def prepare(self, arch: int | str, warp_size: int, backend: str) -> None:
        """Have the compiler loaded for an architecture before the next fork: a second saved in every runner."""
        self._asked({"op": "prepare", "arch": arch, "warp_size": warp_size, "backend": backend})

    def reap(self, pid: int, grace_s: float) -> dict[str, Any]:
        """Wait up to `grace_s` for a runner to end, then kill it and all it started; say how it ended."""
        return self._asked({"op": "reap", "pid": pid, "grace_s": grace_s})

    def _asked(self, message: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            ChannelClosed: the forking process is gone.
        """
        with self._lock:
            try:
                socket.send_fds(self._sock, [_line(message)], fds)
                return _read_line(self._sock)
            except OSError as error:
                raise ChannelClosed(f"the forking process is gone: {error}") from error

    def close(self) -> None:
        """End the zygote."""
        self._sock.close()
        os.waitpid(self.pid, 0)


_FRESH = """
import importlib.util, json, sys
root, fd, device_kind, path = sys.argv[1:]
sys.path[:] = json.loads(path)
spec = importlib.util.spec_from_file_location("kopt_mcp", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["kopt_mcp"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from kopt_mcp.evaluator import zygote
zygote.begin(int(fd), device_kind)
"""


def _fork(ours: socket.socket, theirs: socket.socket, device_kind: str) -> int:
    return os.fork() or _become_zygote(ours, theirs, device_kind)


def _become_zygote(ours: socket.socket, theirs: socket.socket, device_kind: str) -> NoReturn:
    ours.close()
    close_all_but(theirs.fileno())
    try:
        _serve(theirs, device_kind)
    except BaseException:
        traceback.print_exc()  # into the harness's log, whose end is shown where that ends
    finally:
        os._exit(0)


def _start_afresh(theirs: socket.socket, device_kind: str) -> int:
    package = str(Path(__file__).resolve().parent.parent)
    arguments = [package, str(theirs.fileno()), device_kind, json.dumps(sys.path)]
    command = [sys.executable, "-I", "-B", "-c", _FRESH, *arguments]
    os.set_inheritable(theirs.fileno(), True)
    return os.posix_spawn(sys.executable, command, os.environ)


def begin(fd: int, device_kind: str) -> None:
    """Entry point of a zygote that is not a fork of the harness."""
    close_all_but(fd)
    _serve(socket.socket(fileno=fd), device_kind)


def _serve(sock: socket.socket, device_kind: str) -> None:
    sandbox.become_reaper()
    _preload(device_kind)
    runners: set[int] = set()
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 3)
        if not data:
            for pid in runners:
                _kill_tree(pid)
            return
        message = json.loads(data)
        if message["op"] == "spawn":
            pid = os.fork() or become_runner(message, fds, sock)
            for fd in fds:
                os.close(fd)
            runners.add(pid)
            sock.sendall(_line({"pid": pid}))
        elif message["op"] == "prepare":
            sock.sendall(_line({"prepared": _load_compiler(message)}))
        else:
            sock.sendall(_line(_reap(message["pid"], message["grace_s"], runners)))


def _preload(device_kind: str) -> None:
    """Import what every runner needs. Triton only for a GPU: on a CPU its interpreter must be chosen before import."""
    if device_kind == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # torch imports Triton below, which decides at its import
    import torch
    import torch.profiler  # its import is slow, and must not happen inside a sandbox

    from kopt_mcp.evaluator import runner  # noqa: F401 - a runner that is shut in could not read it any more

    if device_kind == "cuda" and torch.version.cuda:
        try:
            import triton
            import triton.language  # noqa: F401
        except ImportError:
            return


def _load_compiler(target: dict[str, Any]) -> bool:
    """Compile a trivial Triton kernel, which needs no device and leaves Triton's compiler loaded."""
    try:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, compile

        from kopt_mcp.evaluator.trivial import copy_kernel

        with tempfile.TemporaryDirectory() as folder:
            os.environ["TRITON_CACHE_DIR"] = folder
            signature = {"source": "*fp32", "target": "*fp32", "count": "i32", "BLOCK": "constexpr"}
            source = ASTSource(copy_kernel, signature=signature, constexprs={"BLOCK": 64})
            compile(source, target=GPUTarget(target["backend"], target["arch"], target["warp_size"]))
    except Exception:  # an optimisation only: without it the first compile in each runner takes a second longer
        return False
    finally:
        os.environ.pop("TRITON_CACHE_DIR", None)
    return True


def _reap(pid: int, grace_s: float, runners: set[int]) -> dict[str, Any]:
    """How a runner ended, after ending it and its descendants if need be."""
    runners.discard(pid)
    deadline = time.monotonic() + grace_s
    status: int | None = None
    while status is None:
        done, raw = os.waitpid(pid, os.WNOHANG)
        if done == pid:
            status = raw
        elif time.monotonic() >= deadline:
            break
        else:
            time.sleep(0.002)
    leftovers = _kill_tree(pid)
    if status is None:
        _, status = os.waitpid(pid, 0)
    leftovers |= _kill_orphans(runners)
    return {"code": os.waitstatus_to_exitcode(status), "leftovers": len(leftovers)}


def _kill_tree(pid: int) -> set[int]:
    """Kill a process, its group and everything below it; which others than itself there were."""
    others = set(sandbox.descendants(pid))
    _signal(os.killpg, pid)
    for victim in [pid, *others]:
        _signal(os.kill, victim)
    return others


def _kill_orphans(runners: set[int]) -> set[int]:
    """Kill and collect processes that were left to the zygote because their parent went away; which there were, some of
    them killed before and still to be collected."""
    found: set[int] = set()
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
        orphans = [p for p in _children() if p not in runners]
        if not orphans:
            break
        for orphan in orphans:
            found.add(orphan)
            _kill_tree(orphan)
            os.waitpid(orphan, 0)
    return found


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(p) for p in file.read().split()]
    except OSError:
        return []


def _signal(send: Any, pid: int) -> None:
    try:
        send(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _read_line(sock: socket.socket) -> dict[str, Any]:
    """One answer of the zygote, which is trusted and answers in one short line."""
    data = b""
    while not data.endswith(b"\n"):
        chunk = sock.recv(1 << 16)
        if not chunk:
            raise ChannelClosed("the forking process is gone")
        data += chunk
    message: dict[str, Any] = json.loads(data)
    return message
