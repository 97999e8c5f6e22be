"""What a process that was shut in cannot do. Each attempt is made in a fork, which says in a pipe how it went."""

import ctypes
import errno
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kopt_mcp.evaluator import sandbox, system_calls

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="these are Linux's own means"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def inside(folder: Path, attempt: Callable[[], object], hide_processes: bool = False) -> str:
    """What became of `attempt` in a child that may write to `folder` only: its result, or the error's name."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing"
        try:
            limits = sandbox.Limits(cpu_s=5)
            report = sandbox.restrict(sandbox.interpreter_folders(), [str(folder)], limits, hide_processes)
            said = str(attempt()) if "off" not in (report["landlock"][:3], report["network"][:3]) else "skip"
        except BaseException as error:
            said = type(error).__name__
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    if said == "skip":
        pytest.skip("this kernel has no Landlock, or no network namespace for us")
    return said


def test_files_outside_are_not_readable(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "journal.jsonl"
    own.mkdir()
    other.write_text("secret")
    assert inside(own, other.read_text) == "PermissionError"
    assert inside(own, lambda: os.listdir(tmp_path)) == "PermissionError"
    assert inside(own, lambda: os.listdir("/")) == "PermissionError"


def test_its_own_folder_is_writable_and_the_interpreter_readable(tmp_path: Path) -> None:
    assert inside(tmp_path, lambda: (tmp_path / "x").write_text("hello")) == "5"
    assert inside(tmp_path, lambda: Path(os.__file__).read_text()[:1] != "") == "True"


def test_the_interpreter_and_the_system_are_not_writable(tmp_path: Path) -> None:
    assert inside(tmp_path, lambda: os.open(os.__file__, os.O_WRONLY)) == "PermissionError"
    assert inside(tmp_path, lambda: Path("/etc/kopt").write_text("x")) == "PermissionError"
    assert inside(tmp_path, lambda: Path("/dev/shm/kopt").write_text("x")) == "PermissionError"


def test_a_link_out_of_its_folder_leads_nowhere(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "tolerances.yaml"
    own.mkdir()
    other.write_text("strict")
    (own / "link").symlink_to(other)
    assert inside(own, lambda: (own / "link").write_text("lax")) == "PermissionError"
    assert inside(own, lambda: os.link(other, own / "hard")) in ("PermissionError", "OSError")
    assert inside(own, lambda: os.rename(own, tmp_path / "elsewhere")) in ("PermissionError", "OSError")


def test_the_network_is_out_of_reach(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert inside(tmp_path, lambda: socket.create_connection(address, 1)) in ("PermissionError", "OSError")


def no_filter_here() -> bool:
    return platform.machine() not in ("x86_64", "aarch64")


@pytest.mark.skipif(no_filter_here(), reason="the numbers of this processor's system calls are not known")
def test_sockets_with_a_path_keys_and_rings_are_refused_to_a_candidate(tmp_path: Path) -> None:
    def refused(attempt: Callable[[], object]) -> str:
        return inside(tmp_path, attempt, hide_processes=True)

    syscall = ctypes.CDLL(None).syscall
    keyctl, ring = {"x86_64": 250, "aarch64": 219}.get(platform.machine(), 0), 425
    room = ctypes.create_string_buffer(120)
    assert refused(lambda: socket.socket(socket.AF_UNIX)) == "PermissionError"
    assert refused(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) == "PermissionError"
    assert refused(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)) == "PermissionError"
    assert refused(lambda: socket.socket(40, socket.SOCK_STREAM)) == "PermissionError"  # AF_VSOCK
    assert refused(lambda: syscall(keyctl, 0, -3, 1)) == "-1"
    assert refused(lambda: syscall(ring, 1, room)) == "-1"


@pytest.mark.skipif(no_filter_here(), reason="the numbers of this processor's system calls are not known")
def test_timers_that_go_off_while_it_is_stopped_are_not_there_for_a_candidate(tmp_path: Path) -> None:
    def attempt() -> str:
        libc = ctypes.CDLL(None, use_errno=True)
        made = []
        for make in (
            lambda: libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())),
            lambda: libc.timerfd_create(1, 0),
        ):
            ctypes.set_errno(0)
            made.append((make() < 0, errno.errorcode.get(ctypes.get_errno(), "")))
        return str(made)

    assert inside(tmp_path, attempt) == "[(False, ''), (False, '')]", "a GPU's driver may need them"
    assert inside(tmp_path, attempt, hide_processes=True) == "[(True, 'ENOSYS'), (True, 'ENOSYS')]"


@pytest.mark.skipif(no_filter_here(), reason="the numbers of this processor's system calls are not known")
def test_one_timer_for_a_process_and_waiting_are_left_to_a_candidate(tmp_path: Path) -> None:
    def attempt() -> str:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        return f"{signal.sigwait([signal.SIGALRM]).name} {select.select([], [], [], 0.001)}"

    assert inside(tmp_path, attempt, hide_processes=True) == "SIGALRM ([], [], [])"


@pytest.mark.skipif(no_filter_here(), reason="the numbers of this processor's system calls are not known")
def test_sockets_of_its_own_network_and_connected_pairs_are_left_to_a_candidate(tmp_path: Path) -> None:
    def allowed(attempt: Callable[[], object]) -> str:
        return inside(tmp_path, lambda: attempt() is not None, hide_processes=True)

    assert allowed(lambda: socket.socketpair()) == "True"
    assert allowed(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)) == "True"
    assert allowed(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) == "True"
    assert allowed(lambda: socket.socket(socket.AF_INET6)) == "True"
    assert allowed(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)) == "True"
    assert allowed(lambda: subprocess.run(["true"], check=True)) == "True"


def test_signals_to_others_are_refused(tmp_path: Path) -> None:
    assert inside(tmp_path, lambda: os.kill(os.getppid(), signal.SIGCONT)) == "PermissionError"


@pytest.mark.parametrize("name", ["mem", "environ", "maps"])
def test_the_memory_and_the_environment_of_others_are_not_readable(tmp_path: Path, name: str) -> None:
    assert inside(tmp_path, Path(f"/proc/{os.getpid()}/{name}").read_bytes) == "PermissionError"


@contextmanager
def neighbour(folder: Path) -> Iterator[int]:
    """Another process that is shut in, and waits: as privileged as whoever is tried."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        sandbox.restrict([], [str(folder)], sandbox.Limits(cpu_s=5))
        os.write(writing, b"x")
        signal.pause()
    os.read(reading, 1)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)


def test_no_other_process_has_a_number_where_processes_are_hidden(tmp_path: Path) -> None:
    def attempt() -> str:
        reading, writing = os.pipe()
        if os.fork() == 0:  # only children live in the new namespace
            try:
                os.sched_setaffinity(other, os.sched_getaffinity(0))
                os.write(writing, b"done")
            except OSError as error:
                os.write(writing, type(error).__name__.encode())
            os._exit(0)
        return os.read(reading, 100).decode()

    with neighbour(tmp_path) as other:
        assert inside(tmp_path, attempt) == "done", "or there is nothing to hide from"
        assert inside(tmp_path, attempt, hide_processes=True) == "ProcessLookupError"


def test_it_has_no_privileges_in_its_network_and_cannot_make_another(tmp_path: Path) -> None:
    def attempt() -> str:
        libc = ctypes.CDLL(None, use_errno=True)
        made = [libc.unshare(kind) for kind in (_NEW_NET, _NEW_USER, _NEW_USER | _NEW_NET)]
        effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line)
        return f"{made} {int(effective.split()[1], 16) & ~sandbox._OVER_FILES}"

    assert inside(tmp_path, attempt) == "[-1, -1, -1] 0"


_NEW_USER, _NEW_NET = 0x10000000, 0x40000000


def test_limits_hold(tmp_path: Path) -> None:
    def large() -> None:
        with (tmp_path / "large").open("wb") as file:
            file.seek(8 << 30)
            file.write(b"x")

    assert inside(tmp_path, large) == "OSError"
    assert inside(tmp_path, lambda: [os.open("/dev/null", os.O_RDONLY) for _ in range(2000)]) == "OSError"


def test_what_is_in_force_is_reported(tmp_path: Path) -> None:
    def report() -> str:
        return sandbox.restrict([], [str(tmp_path)], sandbox.Limits(cpu_s=5))["limits"]

    assert inside(tmp_path, report) == "on"


def test_the_gpus_that_it_can_open_are_reported(tmp_path: Path) -> None:
    def report() -> str:
        shut_in = sandbox.restrict([], [str(tmp_path)], sandbox.Limits(cpu_s=5), gpu_nodes=("full", "no-such*"))
        return shut_in["gpus"] if shut_in["landlock"].startswith("on") else "skip"

    assert inside(tmp_path, report) == "only /dev/full"


def test_a_thread_is_shut_in_and_says_what_is_in_force(tmp_path: Path) -> None:
    """Of a process that is not shut in itself: what a thread may not do, the others still may."""
    own, secret = tmp_path / "own", tmp_path / "secret"
    own.mkdir()
    secret.write_text("42")
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        said: list[str] = []

        def shut_in() -> None:
            report = sandbox.restrict(sandbox.interpreter_folders(), [str(own)], sandbox.Limits(cpu_s=5))
            said.append(report["landlock"][:2])
            try:
                said.append(secret.read_text())
            except PermissionError:
                said.append("refused")

        thread = threading.Thread(target=shut_in)
        thread.start()
        thread.join()
        os.write(writing, " ".join([*said, secret.read_text()]).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        assert pipe.read() in ("on refused 42", "of 42 42")


def test_a_process_that_has_ended_has_no_children() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert sandbox.children(ended.pid) == []
    assert sandbox.descendants(ended.pid) == []


def test_descendants_are_found_down_to_grandchildren() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            signal.pause()
        os.write(writing, str(grandchild).encode())
        signal.pause()
    grandchild = int(os.read(reading, 20))
    try:
        assert {child, grandchild} <= set(sandbox.descendants(os.getpid()))
        assert sandbox.descendants(child) == [grandchild]
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_a_project_on_the_search_path_is_not_among_the_interpreters_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    folders = sandbox.interpreter_folders()
    assert str(tmp_path) not in folders
    assert sys.prefix in folders


def test_on_another_system_nothing_of_linux_is_asked_for_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(*_: object, **__: object) -> None:
        raise AssertionError("there is no such library")

    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    monkeypatch.setattr(sandbox.ctypes, "CDLL", no_library)
    monkeypatch.setattr(sandbox, "_limit", lambda limits: "on")
    for step in (sandbox.become_reaper, sandbox.die_with_parent, sandbox.hide_memory):
        step()
    assert sandbox.restrict([], [], sandbox.Limits(cpu_s=5)) == {
        "session": "own",
        "limits": "on",
        "network": "off: not on darwin",
        "landlock": "off: not on darwin",
    }


class Kernel:
    """A C library whose calls come to this, each with its error."""

    def __init__(self, **results: int) -> None:
        self._results = results

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*_: object) -> int:
            if (result := self._results.get(name, 0)) < 0:
                ctypes.set_errno(-result)
                return -1
            return result

        return call


@pytest.fixture
def no_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_text(path: Path, data: str) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(sandbox.Path, "write_text", write_text)


def test_a_network_of_its_own_without_a_name_in_it_is_told(no_writes: None) -> None:
    assert sandbox._leave_network(Kernel()) == "on, user not mapped: Operation not permitted"  # type: ignore[arg-type]


def test_where_more_namespaces_can_be_made_that_is_told(no_writes: None) -> None:
    said = sandbox._give_up_privileges(Kernel(), own_users=True)  # type: ignore[arg-type]
    assert said == "off: it may make more namespaces: Operation not permitted"


def test_privileges_that_it_keeps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said = sandbox._give_up_privileges(Kernel(capset=-errno.EPERM), own_users=False)  # type: ignore[arg-type]
    assert said == "off: Operation not permitted"


@pytest.mark.parametrize(
    ("answers", "said"),
    [([-errno.ENOSYS], "Function not implemented"), ([3, -errno.EOPNOTSUPP], "Operation not supported")],
    ids=["a kernel without it", "a kernel that refuses it"],
)
def test_a_kernel_without_landlock_is_told(answers: list[int], said: str) -> None:
    class Asked(Kernel):
        def __getattr__(self, name: str) -> Callable[..., int]:
            return Kernel(**{name: answers.pop(0)}).__getattr__(name)

    assert sandbox._landlock(Asked(), [], []) == f"off: {said}"  # type: ignore[arg-type]
    assert answers == []


def test_processes_of_other_users_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox._own_processes() > 0
    monkeypatch.setattr(sandbox.os, "getuid", lambda: 1 << 30)
    assert sandbox._own_processes() == 0


def test_on_a_processor_whose_numbers_are_not_known_no_system_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls.platform, "machine", lambda: "riscv64")
    assert system_calls.refuse() == "off: not known for riscv64"
