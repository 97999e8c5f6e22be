"""The journal: appended to, chained, tolerant of a torn end and of nothing else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt_mcp.disk import Disk, digest
from kopt_mcp.errors import JournalCorrupt, WorkspaceFailed
from kopt_mcp.events import RefusalData
from kopt_mcp.journal import Journal, verify

NOW = 1_800_000_000.0


def refusal(text: str = "no") -> RefusalData:
    return RefusalData(kind="GuardRefused", text=text)


def filled(path: Path, count: int = 3) -> Journal:
    journal = Journal(path)
    for number in range(count):
        journal.append("verify", "refused", refusal(f"number {number}"), NOW + number)
    return journal


def test_events_come_back_in_order_with_their_numbers(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    events = Journal(tmp_path / "j").read()
    assert [e.n for e in events] == [0, 1, 2]
    assert [e.data["text"] for e in events] == ["number 0", "number 1", "number 2"]
    assert verify(tmp_path / "j") == 3


def test_each_line_holds_the_hash_of_the_line_before(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    lines = (tmp_path / "j").read_bytes().splitlines()
    assert json.loads(lines[0])["prev"] == ""
    assert json.loads(lines[2])["prev"] == digest(lines[1])


def test_a_journal_that_is_not_there_is_empty_and_reading_does_not_create_it(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none" / "j").read() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [1, 2, 50])
def test_a_torn_last_line_is_ignored_and_the_next_append_cuts_it_away(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    filled(path)
    path.write_bytes(path.read_bytes()[:-cut])
    journal = Journal(path)
    assert len(journal.read()) == 2
    journal.append("verify", "refused", refusal("after"), NOW)
    assert [e.data["text"] for e in Journal(path).read()] == ["number 0", "number 1", "after"]


def test_a_torn_end_of_zero_bytes_is_ignored_too(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path)
    with path.open("ab") as file:
        file.write(b"\0" * 4096)
    assert len(Journal(path).read()) == 3


def test_a_changed_middle_is_refused_with_its_line_number(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path)
    path.write_bytes(path.read_bytes().replace(b"number 1", b"number 7"))
    with pytest.raises(JournalCorrupt, match=r"line 3 does not verify: it does not follow the line before it"):
        Journal(path).read()


def test_a_line_that_is_taken_out_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(JournalCorrupt, match=r"line 2 does not verify: it is event 2 where 1 belongs"):
        verify(path)


def test_a_broken_middle_is_refused_every_time_it_is_read_and_never_written_to(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path)
    path.write_bytes(path.read_bytes().replace(b'{"n":1', b'{"n"!1'))
    before = path.read_bytes()
    journal = Journal(path)
    for _ in range(2):
        with pytest.raises(
            JournalCorrupt, match=r"line 2 does not verify: it is not an event.*nothing is re-initialised"
        ):
            journal.append("verify", "refused", refusal(), NOW)
    assert path.read_bytes() == before


def test_a_change_made_behind_the_back_of_a_running_server_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = filled(path)
    path.write_bytes(path.read_bytes().replace(b"number 0", b"number 9"))
    with pytest.raises(JournalCorrupt):
        journal.read()


def test_a_journal_that_is_known_is_read_again_when_its_file_changed_however_little(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path)
    journal = Journal(path, now_ns=lambda: time.time_ns() + 10**12)  # so that the file always looks old
    assert journal.read() == journal.read()
    Journal(path).append("verify", "refused", refusal("from another"), NOW)
    assert len(journal.read()) == 4
    stamp = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == stamp:  # the system's stamps move in steps
        path.write_bytes(path.read_bytes().replace(b"number 0", b"number 9"))
    with pytest.raises(JournalCorrupt, match="line 2 does not verify"):
        journal.read()


def test_two_readers_see_what_either_appended(tmp_path: Path) -> None:
    one, other = filled(tmp_path / "j", 1), Journal(tmp_path / "j")
    other.append("verify", "refused", refusal("from the other"), NOW)
    one.append("verify", "refused", refusal("from the one"), NOW)
    assert [e.n for e in other.read()] == [0, 1, 2]


def test_a_clock_that_goes_back_does_not_disturb_the_order(tmp_path: Path) -> None:
    journal = filled(tmp_path / "j", 1)
    journal.append("verify", "refused", refusal("earlier"), NOW - 86400)
    first, second = journal.read()
    assert second.n == first.n + 1
    assert second.time < first.time
    assert verify(tmp_path / "j") == 2


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    class Full(Disk):
        def _write(self, fd: int, data: bytes) -> None:
            super()._write(fd, data[:10])
            raise OSError(28, "No space left on device")

    path = tmp_path / "j"
    filled(path)
    before = path.read_bytes()
    with pytest.raises(WorkspaceFailed, match="could not be written: No space left on device"):
        Journal(path, Full()).append("verify", "refused", refusal(), NOW)
    assert path.read_bytes() == before


@given(st.text(st.characters(codec=None), max_size=50))
def test_any_text_survives(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        Journal(path).append("verify", "refused", refusal(text), NOW)
        (event,) = Journal(path).read()
        assert event.data["text"] == text.encode(errors="replace").decode()
