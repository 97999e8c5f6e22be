"""The process that forks runners: how they end, what they leave behind, and what becomes of them when it ends."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from evaluating import processes

from kopt_mcp.evaluator import forked, sandbox, zygote
from kopt_mcp.evaluator.channel import ChannelClosed
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.runners import Place, Runner
from kopt_mcp.evaluator.zygote import Zygote

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="process groups and /proc as on Linux"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


def test_runners_end_with_the_process_that_forked_them(tmp_path: Path) -> None:
    before = processes()
    (tmp_path / "seed").mkdir()
    one = Place(Zygote("cpu", fork=False), tmp_path, "cpu", 1 << 20, tmp_path / "seed")
    runner = Runner(one).ready()
    assert runner.pid in processes()
    for pid in (one.zygote.pid, runner.pid, runner.main_pid):  # the candidate goes first where memory runs out
        score = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
        assert (score == "1000") == (pid != one.zygote.pid)
    one.zygote.close()
    assert processes() == before
    runner.channel.close()
    runner.log.close()
    runner.shared.close()


def test_a_forking_process_that_is_gone_is_said_to_be() -> None:
    gone = Zygote("cpu", fork=False)
    os.kill(gone.pid, signal.SIGKILL)
    for _ in range(3):  # by an end of the stream, and by a broken pipe
        with pytest.raises(ChannelClosed, match="the forking process is gone"):
            gone.reap(0, 0.0)
    gone.close()


def run(code: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which finds this package."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_a_fresh_process_forks_its_zygote_instead_of_starting_one() -> None:
    """In a process of its own, since this one has computed with torch."""
    code = (
        "import os, sys\n"
        "from kopt_mcp.evaluator.zygote import Zygote\n"
        "before = sys.modules.keys() & {'torch'}\n"
        "made = Zygote('cpu')\n"
        "print(made.pid != os.getpid(), os.path.exists(f'/proc/{made.pid}'))\n"
        "made.close()\n"
        "print(os.path.exists(f'/proc/{made.pid}'))\n"
    )
    done = run(code)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


def test_requests_of_several_threads_are_answered_one_by_one() -> None:
    """Two that came together were one that could not be read, and the end of the forking process."""
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from kopt_mcp.evaluator import zygote\n"
        "zygote._load_compiler = lambda target: True\n"
        "zygote._reap = lambda pid, grace_s, runners: {'code': pid, 'leftovers': 0}\n"
        "made = zygote.Zygote('cpu')\n"
        "def reap(n): assert made.reap(n, 0.0)['code'] == n\n"
        "def prepare(n): made.prepare(n, 32, 'cuda')\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    list(pool.map(lambda n: (prepare if n % 2 else reap)(n), range(4000)))\n"
        "made.close()\n"
        "print('all')\n"
    )
    done = run(code)
    assert done.stdout == "all\n", done.stderr


def ended(act: Callable[[], object]) -> int:
    """The exit code of a fork that does this; negative where a signal ended it."""
    if (pid := os.fork()) == 0:
        act()
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("code", [0, 3, -signal.SIGABRT, -signal.SIGKILL, -signal.SIGTERM])
def test_a_process_that_stands_for_another_ends_like_it(code: int) -> None:
    raw = -code if code < 0 else code << 8
    assert ended(lambda: forked.end_like(raw)) == code


@pytest.mark.parametrize(
    ("code", "reset"), [(signal.SIGABRT, [signal.SIGABRT]), (signal.SIGTERM, [signal.SIGTERM]), (signal.SIGKILL, [])]
)
def test_a_process_that_stands_for_another_forgets_its_own_handler_of_the_signal(
    monkeypatch: pytest.MonkeyPatch, code: int, reset: list[int]
) -> None:
    """A handler would be called instead; for SIGKILL there can be none."""
    forgotten: list[int] = []
    sent: list[tuple[int, int]] = []

    def forget(kind: int, handler: object) -> None:
        assert handler is signal.SIG_DFL
        forgotten.append(kind)

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(forked.signal, "signal", forget)
    monkeypatch.setattr(forked.os, "kill", lambda pid, kind: sent.append((pid, kind)))
    monkeypatch.setattr(forked.os, "_exit", leave)
    with pytest.raises(SystemExit) as left:  # only where the signal has not ended it
        forked.end_like(code)
    assert (forgotten, sent, left.value.code) == (reset, [(os.getpid(), code)], -code)


def test_a_runner_that_cannot_start_says_why_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seed").mkdir()
    place = Place(Zygote("cpu", fork=False), tmp_path, "cpu", 1 << 20, tmp_path / "seed")
    described = Runner._description
    monkeypatch.setattr(Runner, "_description", lambda self, nonce: described(self, nonce) | {"folder": "/nowhere"})
    with pytest.raises(Fault, match=r"(?s)did not start \(code 1\).*No such file or directory: '/nowhere'"):
        Runner(place).ready()
    place.zygote.close()


def test_a_forking_process_that_breaks_says_so_in_the_log_of_its_parent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And never goes on with what its parent was doing."""
    ours, theirs = socket.socketpair()

    def broken(sock: socket.socket, device_kind: str) -> None:
        raise RuntimeError(f"no fork for {device_kind}")

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(zygote, "_serve", broken)
    monkeypatch.setattr(zygote, "close_all_but", lambda *keep: None)
    monkeypatch.setattr(zygote.os, "_exit", leave)
    with pytest.raises(SystemExit):
        zygote._become_zygote(ours, theirs, "cpu")
    assert "RuntimeError: no fork for cpu" in capfd.readouterr().err
    assert ours.fileno() == -1
    theirs.close()


def test_an_answer_that_breaks_off_is_the_end_of_the_forking_process() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b'{"pid": ')
    theirs.close()
    with ours, pytest.raises(ChannelClosed, match="the forking process is gone"):
        zygote._read_line(ours)


def test_orphans_that_do_not_end_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote, "_children", lambda: [1 << 30])
    monkeypatch.setattr(zygote, "_REAP_S", -1.0)
    assert zygote._kill_orphans(set()) == set()


def test_a_process_that_was_killed_and_is_collected_later_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of a runner that had to be killed goes to the zygote, where it was found, and counted, again."""
    reading, writing = os.pipe()
    if (runner := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, b"x")
        signal.pause()
    os.read(reading, 1)
    (child,) = sandbox.descendants(runner)
    left, waited = [[child], []], os.waitpid
    monkeypatch.setattr(zygote, "_children", lambda: left.pop(0))
    monkeypatch.setattr(zygote.os, "waitpid", lambda pid, flags: waited(pid, flags) if pid == runner else (pid, 9))
    assert zygote._reap(runner, 0.0, set()) == {"code": -signal.SIGKILL, "leftovers": 1}
    for end in (reading, writing):
        os.close(end)


def test_where_the_system_lists_no_children_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote.os, "getpid", lambda: 0)
    assert zygote._children() == []


def test_without_triton_a_runner_for_a_gpu_has_torch_ready_and_no_more() -> None:
    """In a process of its own: what is imported stays so."""
    code = (
        "import sys\n"
        "import torch\n"
        "from kopt_mcp.evaluator import zygote\n"
        "torch.version.cuda = '12.9'\n"
        "for name in [n for n in sys.modules if n.partition('.')[0] == 'triton']:\n"
        "    del sys.modules[name]\n"
        "sys.modules['triton'] = None\n"
        "zygote._preload('cuda')\n"
        "print('kopt_mcp.evaluator.runner' in sys.modules, 'triton.language' in sys.modules)\n"
        "target = {'backend': 'cuda', 'arch': 90, 'warp_size': 32}\n"
        "print(zygote._load_compiler(target))\n"
    )
    done = run(code)
    assert done.stdout.split() == ["True", "False", "False"], done.stderr


def test_all_descriptors_but_those_named_are_closed() -> None:
    kept, other = os.pipe()

    def act() -> None:
        forked.close_all_but(kept)
        os._exit(sum(1 << n for n, fd in enumerate((kept, other)) if is_open(fd)))

    assert ended(act) == 1
    os.close(kept)
    os.close(other)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
