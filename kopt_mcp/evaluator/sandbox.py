"""Shut a candidate's process in, with what the operating system offers to an ordinary user.

`restrict` is called in the forked runner before the candidate is imported, and says what is in force, because an
evaluation reports it: a network namespace, in which it has no privileges (a loop of packets there would keep the kernel
busy while the process itself is stopped), Landlock (files, TCP, signals), resource limits. Nothing here needs root or a
package; where the kernel lacks something, the report says `off` and why. None of this stops an attacker of the kernel
itself, nor a candidate that reads what the interpreter's own folders hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kopt_mcp.evaluator import system_calls

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_SIGKILL = 9
_CLONE_NEWPID, _CLONE_NEWIPC = 0x20000000, 0x08000000
_CAPABILITY_VERSION, _OVER_FILES = 0x20080522, 0x1F
"""linux/capability.h: its third version, and the five capabilities that overrule the owners and modes of files."""

# Landlock access rights, by ABI version that introduced them (linux/landlock.h).
_EXECUTE, _WRITE, _READ, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FS_V1 = (1 << 13) - 1
_FS_REFER, _FS_TRUNCATE, _FS_IOCTL = 1 << 13, 1 << 14, 1 << 15
_READ_ONLY = _EXECUTE | _READ | _READ_DIR
_NET_TCP = 0b11
_SCOPE_ALL = 0b11

SYSTEM_FOLDERS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc",
    "/opt/cuda",
    "/opt/rocm",
    "/proc",
    "/sys",
    "/run/nvidia-persistenced",
)
DEVICE_NODES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
GPU_NODES = ("kfd", "dri", "nvidia*")
"""Names below /dev of all GPUs."""
_OWN_PROC = "/proc/self"
"""The CUDA driver writes below it when it starts."""


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32))


@dataclass(frozen=True)
class Limits:
    """What one candidate process may use."""

    cpu_s: int
    file_bytes: int = 2 << 30
    processes: int = 512
    open_files: int = 1024


def restrict(
    readable: Sequence[str],
    writable: Sequence[str],
    limits: Limits,
    hide_processes: bool = False,
    own_network: bool = True,
    gpu_nodes: Sequence[str] = GPU_NODES,
) -> dict[str, str]:
    """Apply everything that can be had to the calling process and its future children; return what is in force.

    With `hide_processes` its children (not itself) live in a process namespace, where no other process has a number: a
    candidate must not pin the incumbent to one core, which neither Landlock nor a user namespace prevents. System calls
    are refused too that a GPU's driver may need (see `system_calls`). There is no GPU for them then, to go on with what
    it was given while they are stopped; else there are those of `gpu_nodes`, names below /dev. Without `own_network`
    the network stays as it is, but for TCP, which Landlock forbids: a tool that watches the process from outside
    reaches it through an abstract socket, and those belong to a network namespace.
    """
    report = {"session": "own", "limits": _limit(limits)}
    if sys.platform != "linux":
        return {**report, "network": f"off: not on {sys.platform}", "landlock": f"off: not on {sys.platform}"}
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    report["network"] = _leave_network(libc) if own_network else "off: kept, so that a tool can reach the process"
    if hide_processes:
        # System V's shared memory is in no folder and outlives its process, but not its namespace.
        report["shared memory"] = "own" if libc.unshare(_CLONE_NEWIPC) == 0 else _why_off()
        hidden = libc.unshare(_CLONE_NEWPID) == 0
        report["processes"] = "hidden" if hidden else _why_off()
    if report["network"].startswith("on"):
        report["privileges"] = _give_up_privileges(libc, own_users=report["network"] == _OWN_USERS)
    gpus = [] if hide_processes else [str(node) for name in gpu_nodes for node in Path("/dev").glob(name)]
    report["landlock"] = _landlock(libc, readable, [*writable, _OWN_PROC, *DEVICE_NODES, *gpus])
    if gpus and report["landlock"].startswith("on"):
        report["gpus"] = "only " + " ".join(sorted(gpus))
    if hide_processes:
        report["system calls"] = system_calls.refuse()
    return report


def become_reaper() -> None:
    """Adopt every descendant that daemonises, so that none outlives its evaluation; die with the parent."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when the parent ends; a fork does not inherit it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def go_first() -> None:
    """Be the one, with all that it starts, that is ended where memory runs out: not who asked, nor who measures."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def hide_memory() -> None:
    """Keep other processes of the same user out of this one's memory and environment."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def children(pid: int) -> list[int]:
    """The living processes that `pid` is the parent of, from /proc; empty where there is no /proc."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it may end while it is being looked at, and so may each of its threads
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in text_of(f"/proc/{pid}/task/{task}/children").split()]
    return found


def text_of(path: str) -> str:
    """A small file of /proc, in a third of the time that Python's own way takes: there are hundreds between two calls.

    Raises:
        OSError: it is not there any more.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    finally:
        os.close(descriptor)


def descendants(pid: int) -> list[int]:
    """All living processes below `pid`."""
    return [one for child in children(pid) for one in (child, *descendants(child))]


def limit_cpu(seconds: int) -> None:
    """Lower the seconds that this process may compute in all; beyond them the system ends it."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def interpreter_folders() -> list[str]:
    """Folders that Python itself and its packages need to be read from."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parent.parent)}
    # Not all of sys.path: a script's own folder and editable installs on it may hold the problem and the journal.
    folders |= {p for p in sys.path if Path(p).name in ("site-packages", "dist-packages") and Path(p).is_dir()}
    folders |= {str(Path(sys.modules[m].__file__ or "").parent) for m in ("torch", "triton") if m in sys.modules}
    cuda = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return sorted(folders | ({cuda} if cuda else set()))


def _why_off() -> str:
    return f"off: {os.strerror(ctypes.get_errno())}"


def _limit(limits: Limits) -> str:
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes + _own_processes(),
    }
    # Where a user may give a process precedence over others, one side would run undisturbed and the other not.
    wanted |= {getattr(resource, n): 0 for n in ("RLIMIT_NICE", "RLIMIT_RTPRIO") if hasattr(resource, n)}
    for kind, value in wanted.items():
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    return "on"


def _own_processes() -> int:
    """Processes of this user now: RLIMIT_NPROC counts them all, not only ours."""
    uid = os.getuid()
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.stat().st_uid == uid:
                count += sum(1 for _ in (entry / "task").iterdir())
        except OSError:
            continue
    return count


def _leave_network(libc: ctypes.CDLL) -> str:
    """A network namespace of our own; inside a user namespace, which also gives up every privilege outside it."""
    new_user, new_net = 0x10000000, 0x40000000
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(new_user | new_net) != 0:
        return _why_off() if libc.unshare(new_net) != 0 else "on"
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError as error:
        return f"on, user not mapped: {error.strerror}"
    return _OWN_USERS


_OWN_USERS = "on, own user namespace"


def _give_up_privileges(libc: ctypes.CDLL, own_users: bool) -> str:
    """No power over the namespaces that this process is in, and no way to make others, in which it would have it."""
    said = "given up"
    if own_users:
        try:
            Path("/proc/sys/user/max_user_namespaces").write_text("0")
        except OSError as error:
            said = f"off: it may make more namespaces: {error.strerror}"
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    effective_permitted_inheritable = (ctypes.c_uint32 * 6)(_OVER_FILES, _OVER_FILES)
    return said if libc.capset(header, effective_permitted_inheritable) == 0 else _why_off()


def _landlock(libc: ctypes.CDLL, readable: Sequence[str], writable: Sequence[str]) -> str:
    abi = libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if abi < 1:
        return _why_off()
    everything = _FS_V1 | (_FS_REFER if abi >= 2 else 0) | (_FS_TRUNCATE if abi >= 3 else 0)
    everything |= _FS_IOCTL if abi >= 5 else 0
    attr = _RulesetAttr(everything, _NET_TCP if abi >= 4 else 0, _SCOPE_ALL if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(attr), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return _why_off()
    for path in [*SYSTEM_FOLDERS, *readable]:
        _allow(libc, ruleset, path, _READ_ONLY & everything)
    for path in writable:
        _allow(libc, ruleset, path, everything)
    restricted = libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return f"on, abi {abi}" if restricted == 0 else _why_off()


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    """Add one rule; a path that does not exist is left out, a file takes no rights of folders."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not Path(path).is_dir():
        rights &= _EXECUTE | _WRITE | _READ | _FS_TRUNCATE | _FS_IOCTL
    attr = _PathBeneathAttr(rights, fd)
    libc.syscall(_LANDLOCK_ADD, ruleset, 1, ctypes.byref(attr), 0)
    os.close(fd)
