"""Deleting a folder that a candidate had to itself."""

import os
from pathlib import Path

from kopt_mcp.evaluator.clearing import remove


def test_a_folder_goes_with_files_links_and_folders_that_nobody_may_enter(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    folder = tmp_path / "folder"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("x")
    (folder / "a" / "link").symlink_to(outside)
    (folder / "link").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    (folder / "a" / "b").chmod(0)
    (folder / "a").chmod(0)
    remove(folder)
    assert not folder.exists()
    assert (outside / "kept").read_text() == "x"


def test_folders_may_lie_deeper_than_a_path_or_a_recursion_reaches(tmp_path: Path) -> None:
    folder, here = tmp_path / "folder", os.getcwd()
    folder.mkdir()
    try:
        os.chdir(folder)
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)
    remove(folder)
    assert not folder.exists()


def test_what_is_not_there_is_as_good_as_deleted(tmp_path: Path) -> None:
    remove(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []
