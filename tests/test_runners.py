"""Runners before they have a candidate: made ready ahead of time, handed out once, their caches kept apart."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from evaluating import processes

from kopt_mcp.evaluator import runners, sandbox
from kopt_mcp.evaluator.caches import Caches
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.runners import Place, Runner
from kopt_mcp.evaluator.zygote import Zygote


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    seed = tmp_path_factory.mktemp("seed")
    (seed / "triton").mkdir()
    (seed / "triton" / "launcher").write_text("ours")
    made = Place(Zygote("cpu", fork=False), tmp_path_factory.mktemp("place"), "cpu", 1 << 20, seed)
    yield made
    made.spares.close()
    made.zygote.close()


def test_a_spare_is_handed_out_once_and_then_new_ones_are_made(place: Place) -> None:
    place.spares.restock(1)
    place.spares.settle()
    before = processes()
    first, second = place.spares.take(), place.spares.take()
    assert first.pid in before
    assert second.pid not in before
    for runner in (first, second):
        assert (runner.cache / "triton" / "launcher").read_text() == "ours"
        assert runner.say_goodbye()
        assert runner.reap(5.0) == {"code": 0, "leftovers": 0}
        assert not runner.folder.exists()


def test_a_spare_that_has_died_is_not_handed_out(place: Place) -> None:
    place.spares.restock(1)
    place.spares.settle()
    (spare,) = sandbox.children(place.zygote.pid)
    os.kill(spare, signal.SIGKILL)
    while Path(f"/proc/{spare}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    runner = place.spares.take()
    assert runner.pid != spare
    runner.reap(0.0)


def test_what_is_reaped_in_the_background_is_gone_once_all_is_settled(place: Place) -> None:
    before = processes()
    runner = Runner(place).ready()
    assert runner.say_goodbye()
    place.spares.end(runner, 5.0)
    place.spares.settle()
    assert processes() == before


def test_a_runner_that_does_not_leave_is_killed_and_its_end_told(place: Place) -> None:
    runner = Runner(place).ready()
    assert runner.reap(0.0)["code"] == -signal.SIGKILL


def test_spares_that_nobody_took_are_ended(place: Place, tmp_path: Path) -> None:
    before = processes()
    other = Place(place.zygote, tmp_path, "cpu", 1 << 20, place.seed_cache)
    other.spares.restock(2)
    other.spares.restock(2)
    other.spares.close()
    assert processes() == before


def test_a_runner_that_cannot_start_says_what_it_said_last(place: Place, tmp_path: Path) -> None:
    missing = Place(place.zygote, tmp_path, "no such device", 1 << 20, place.seed_cache)
    with pytest.raises(Fault) as caught:
        missing.spares.take()
    assert caught.value.status == "RUNTIME_ERROR"
    missing.spares.close()


def test_a_process_that_speaks_out_of_turn_is_no_runner_and_is_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, as_ever = processes(), Runner._description
    monkeypatch.setattr(Runner, "_description", lambda self, nonce: as_ever(self, "another's"))
    with pytest.raises(Fault, match=r"a process for the candidate did not start \(code -?\d+\): ") as caught:
        place.spares.take()
    assert caught.value.status == "RUNTIME_ERROR"
    assert processes() == before


def test_what_has_ended_is_not_alive_and_is_taken_to_be_where_there_is_no_proc(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runner = Runner(place).ready()
    assert runner.alive()
    runner.reap(0.0)
    runner.pid = 1 << 22  # which none ever is
    assert not runner.alive()
    monkeypatch.setattr(runners, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert runner.alive()


def cache_of(folder: Path, **files: str) -> Path:
    """A runner's cache with one folder of artefacts."""
    (folder / "triton").mkdir(parents=True)
    for name, text in files.items():
        (folder / "triton" / name).write_text(text)
    return folder


def test_a_candidate_finds_what_its_own_runners_left_and_nothing_of_others(tmp_path: Path) -> None:
    caches = Caches(tmp_path / "caches")
    caches.keep("a", cache_of(tmp_path / "one", kernel="first"))
    caches.keep("a", cache_of(tmp_path / "two", kernel="second", other="more"))
    for sha256, found in (("a", {"kernel": "first", "other": "more"}), ("b", {})):
        target = tmp_path / f"for-{sha256}"
        caches.lend(sha256, target)
        assert {f.name: f.read_text() for f in target.glob("triton/*")} == found


def test_a_link_in_a_cache_is_never_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "seed").write_text("42")
    caches, left = Caches(tmp_path / "caches"), cache_of(tmp_path / "left")
    (left / "triton" / "inside").symlink_to(secret / "seed")
    (left / "inductor").symlink_to(secret)
    caches.keep("a", left)
    caches.lend("a", tmp_path / "target")
    assert (tmp_path / "target" / "triton" / "inside").is_symlink()
    assert (tmp_path / "target" / "inductor").is_symlink()
    assert list(secret.iterdir()) == [secret / "seed"], "nothing was moved out of or into what the link points at"


def test_a_link_in_place_of_the_cache_or_of_what_is_kept_is_never_followed(tmp_path: Path) -> None:
    secret, one, two = (cache_of(tmp_path / name, kernel=name) for name in ("secret", "one", "two"))
    caches, left = Caches(tmp_path / "caches"), tmp_path / "left"
    left.symlink_to(secret)
    caches.keep("a", left)
    (one / "triton").rename(tmp_path / "away")
    (one / "triton").symlink_to(secret)
    caches.keep("a", one)  # from here on a link is kept under the name of Triton's folder
    caches.keep("a", two)
    assert [f.read_text() for f in secret.rglob("*") if f.is_file()] == ["secret"], "nothing came or went"


def test_what_triton_compiled_is_found_again_in_a_copy_of_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = pytest.importorskip("triton.runtime.cache").FileCacheManager
    caches, left = Caches(tmp_path / "caches"), tmp_path / "left"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(left / "triton"))
    here = manager("0123abcd")
    group = {name: here.put(name, name, binary=False) for name in ("soft.cubin", "soft.json")}
    here.put_group("soft.json", group)
    caches.keep("a", left)
    caches.lend("a", tmp_path / "lent")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "lent" / "triton"))
    found = manager("0123abcd").get_group("soft.json")
    assert {name: Path(path).read_text() for name, path in found.items()} == {n: n for n in group}
    assert all(Path(path).is_relative_to(tmp_path / "lent") for path in found.values())


def test_a_file_of_gigabytes_that_takes_no_block_is_not_copied(tmp_path: Path) -> None:
    caches, left = Caches(tmp_path / "caches"), cache_of(tmp_path / "left", kernel="first")
    with (left / "triton" / "huge").open("wb") as file:
        file.truncate(8 << 30)
    caches.keep("a", left)
    caches.lend("a", tmp_path / "target")
    assert [f.name for f in (tmp_path / "target" / "triton").iterdir()] == ["kernel"]


def test_a_link_in_place_of_tritons_list_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("text")
    caches, left = Caches(tmp_path / "caches"), cache_of(tmp_path / "left", kernel="first")
    (left / "triton" / "__grp__soft.json").symlink_to(precious)
    caches.keep("a", left)
    caches.lend("a", tmp_path / "target")
    assert precious.read_text() == "text"
