"""One step at a time: waiting, giving up, and what a dead holder leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import ticking

from kopt_mcp.errors import Cancelled, DeviceBusy, GuardRefused
from kopt_mcp.lock import Locks, claimed, runtime_folder
from kopt_mcp.watch import Watch


def locks(folder: Path, bound_s: float = 3.0) -> Locks:
    return Locks(folder, bound_s=bound_s, monotonic=ticking(), sleep=lambda seconds: None)


def test_a_free_device_is_held_without_waiting(tmp_path: Path) -> None:
    said: list[str] = []
    with locks(tmp_path).device("GPU-1", "H200", Watch(lambda fraction, text: said.append(text))):
        assert said == []


def test_a_held_device_is_waited_for_and_then_refused_with_its_owner(tmp_path: Path) -> None:
    said: list[str] = []
    with locks(tmp_path).device("GPU-1", "H200", Watch()):
        waiting = locks(tmp_path).device("GPU-1", "H200", Watch(lambda fraction, text: said.append(text)))
        with pytest.raises(DeviceBusy, match=rf"device H200 has been held for 3 s by process {os.getpid()} since 20"):
            waiting.__enter__()
    assert said
    assert all(text.startswith(f"waiting for device H200, held by process {os.getpid()}") for text in said)


def test_waiting_ends_when_the_holder_lets_go(tmp_path: Path) -> None:
    first = locks(tmp_path).device("GPU-1", "H200", Watch())
    first.__enter__()
    patient = Locks(tmp_path, monotonic=ticking(), sleep=lambda seconds: first.__exit__(None, None, None) and None)
    with patient.device("GPU-1", "H200", Watch()):
        pass


def test_a_cancelled_call_stops_waiting(tmp_path: Path) -> None:
    watch = Watch()
    with locks(tmp_path).device("GPU-1", "H200", Watch()):
        watch.cancel()
        with pytest.raises(Cancelled, match="gave up waiting for device H200"):
            locks(tmp_path).device("GPU-1", "H200", watch).__enter__()


def test_two_devices_are_held_side_by_side(tmp_path: Path) -> None:
    with locks(tmp_path).device("GPU-1", "H200", Watch()), locks(tmp_path).device("GPU-2", "H200", Watch()):
        pass


def test_an_experiment_has_one_writer(tmp_path: Path) -> None:
    with locks(tmp_path).experiment(tmp_path, Watch()), pytest.raises(GuardRefused, match="one step runs at a time"):
        locks(tmp_path).experiment(tmp_path, Watch()).__enter__()


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from kopt_mcp.watch import Watch
from kopt_mcp.lock import Locks
Locks(Path(sys.argv[1])).device("GPU-1", "H200", Watch()).__enter__()
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    with locks(tmp_path).device("GPU-1", "H200", Watch()):
        pass


def test_a_name_can_be_claimed_once(tmp_path: Path) -> None:
    with claimed(tmp_path / "l") as mine, claimed(tmp_path / "l") as theirs:
        assert mine
        assert not theirs
    with claimed(tmp_path / "l") as again:
        assert again


def test_a_device_id_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    with locks(tmp_path).device("../../x/MIG 1", "H200", Watch()):
        assert [p.name for p in tmp_path.iterdir()] == ["device-______x_MIG_1.lock"]


def test_the_folder_for_locks_is_the_users_own_and_the_same_whatever_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = runtime_folder()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert runtime_folder() == before
    assert before.stat().st_uid == os.getuid()
