"""Which machine code ran: a hash of what a candidate was compiled to, taken from folders that it could write to."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from kopt_mcp.evaluator.binary import MOST_FILES, digest


def folders(tmp_path: Path) -> tuple[Path, Path]:
    own, seed = tmp_path / "own", tmp_path / "seed"
    (own / "triton" / "AB").mkdir(parents=True)
    (seed / "triton").mkdir(parents=True)
    return own, seed


def test_one_library_is_named_by_its_own_hash(tmp_path: Path) -> None:
    own, seed = folders(tmp_path)
    (own / "kernel.so").write_bytes(b"machine code")
    assert digest([own], seed) == sha256(b"machine code").hexdigest()


def test_several_kernels_have_one_hash_that_does_not_depend_on_their_names(tmp_path: Path) -> None:
    own, seed = folders(tmp_path)
    (own / "triton" / "AB" / "a.cubin").write_bytes(b"one")
    (own / "triton" / "b.cubin").write_bytes(b"two")
    before = digest([own], seed)
    (own / "triton" / "AB" / "a.cubin").rename(own / "z.cubin")
    assert digest([own, own / "triton"], seed) == before
    (own / "z.cubin").write_bytes(b"three")
    assert digest([own], seed) != before


def test_what_every_candidate_starts_from_and_what_starts_kernels_is_left_out(tmp_path: Path) -> None:
    own, seed = folders(tmp_path)
    for folder in (own, seed):
        (folder / "triton" / "ours.cubin").write_bytes(b"ours")
    (own / "triton" / "__triton_launcher.cpython-312-x86_64-linux-gnu.so").write_bytes(b"starts kernels")
    assert digest([own], seed) is None


def test_links_pipes_and_floods_are_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    own, seed = folders(tmp_path)
    secret = tmp_path / "secret"
    secret.write_bytes(b"not the candidate's")
    (own / "link.so").symlink_to(secret)
    os.mkfifo(own / "pipe.so")
    (own / "folder.so").mkdir()
    assert digest([own], seed) is None
    for number in range(MOST_FILES + 5):
        (own / f"{number}.cubin").write_bytes(bytes([number % 256, number // 256]))
    assert digest([own], seed) is None
