"""`kopt-mcp import`, and `evaluate` on what is no problem file: as the pages in docs/formats say it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kopt_mcp.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "formats"
KERNEL = """
import torch


def softmax(x):
    e = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return e / e.sum(dim=-1, keepdim=True)
"""
SCRIPT = """
import json, sys
from softmax import softmax
if "--json" in sys.argv:
    print(json.dumps({"correctness": True, "latency_us": 5.0, "status": "pass"}))
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in a folder with a kernel; returns exit status, standard output and standard error."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KOPT_PYTHON", sys.executable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (folder / "softmax.py").write_text(KERNEL)

    def command(*words: str) -> tuple[int, str, str]:
        try:
            status = main(list(words))
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        out = capsys.readouterr()
        return status, out.out, out.err

    return command


def problem(file: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, file, "--device", "cpu", "--correctness", "--json", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


FUNCTIONS = ("softmax.py:softmax", "--reference", "torch:softmax(dim=-1)", "--shape", "7x33")


def test_the_file_that_is_written_passes_for_a_right_kernel_and_fails_for_a_wrong_one(run: Run) -> None:
    status, out, _ = run("import", *FUNCTIONS)
    assert status == 0
    assert "found    reference torch:softmax(dim=-1)" in out
    assert "wrote test_softmax.py: try it with `python test_softmax.py --json`" in out
    done = problem("test_softmax.py")
    assert (done.returncode, json.loads(done.stdout.splitlines()[-1])["status"]) == (0, "pass"), done.stderr
    Path("softmax.py").write_text(KERNEL.replace("x - x.max(dim=-1, keepdim=True).values", "2 * x"))
    assert problem("test_softmax.py").returncode == 1
    Path("right.py").write_text(KERNEL)
    assert problem("test_softmax.py", "--kernel", "right.py").returncode == 0


def test_nothing_is_overwritten_without_force(run: Run) -> None:
    Path("test_softmax.py").write_text("mine")
    status, _, err = run("import", *FUNCTIONS)
    assert (status, err) == (
        1, "test_softmax.py exists; nothing is overwritten; name another with --out, or give --force.\n"
    )  # fmt: skip
    assert Path("test_softmax.py").read_text() == "mine"
    assert run("import", *FUNCTIONS, "--force")[0] == 0
    assert "PROBLEM = opened(" in Path("test_softmax.py").read_text()


def test_a_script_is_said_to_be_one_and_a_problem_is_begun_for_its_kernel(run: Run) -> None:
    Path("test_softmax.py").write_text(SCRIPT)
    status, out, _ = run("import", "test_softmax.py")
    assert status == 0
    assert "test_softmax.py: script, 'softmax'" in out
    assert "trust    reported: it judges and times the kernel itself." in out
    assert "nothing written: name the kernel with --kernel" in out
    status, out, _ = run("import", "test_softmax.py", "--kernel", "softmax.py", "--out", "test_measured.py")
    assert status == 0
    assert "wrote test_measured.py: complete it" in out
    assert "PROBLEM = Problem(" in Path("test_measured.py").read_text()


def test_what_is_missing_is_shown_and_nothing_is_written(run: Run) -> None:
    Path("test_softmax.py").write_text("import sys\nprint('--json' in sys.argv)\n")
    status, out, _ = run("import", "test_softmax.py", "--out", "out.py")
    assert (status, Path("out.py").exists()) == (1, False)
    assert "missing  test_softmax.py prints neither 'correctness' nor 'status'; expected one of them." in out


def test_a_problem_file_needs_no_import(run: Run) -> None:
    shutil.copy(ROOT / "examples" / "cpu_softmax" / "test_softmax.py", "test_softmax.py")
    status, out, _ = run("import", "test_softmax.py")
    assert status == 0
    assert "is a problem file as it is: name it as test_path." in out


def test_what_is_of_no_format_is_refused_with_every_reason(run: Run) -> None:
    status, out, err = run("import", "softmax.py")
    assert (status, out) == (1, "")
    assert err.startswith("softmax.py is of no format that is known: problem: softmax.py assigns nothing to PROBLEM;")
    assert run("import", "nowhere")[0] == 1


def test_a_script_without_json_is_told_what_it_could_have_been(run: Run) -> None:
    Path("check.py").write_text("from softmax import softmax\nprint('PASS')\n")
    status, _, err = run("evaluate", "softmax.py", "--problem", "check.py", "--device", "cpu")
    assert status == 1
    assert "check.py does not load: line 1: ModuleNotFoundError" in err
    assert "It was taken for a problem file because check.py is of no format that is known: problem: " in err
    assert "script: check.py does not take '--json'" in err


def test_a_kernel_that_imports_a_file_beside_it_is_told_that_it_is_tried_alone(run: Run) -> None:
    Path("helper.py").write_text("def softmax(x):\n    return x.softmax(-1)\n")
    Path("softmax.py").write_text("from helper import softmax\n")
    told = ("--reference", "torch:softmax(dim=-1)", "--shape", "7x33", "--device", "cpu")
    status, out, _ = run("evaluate", "softmax.py:softmax", *told)
    assert (status, out.splitlines()[0].split(":")[:2]) == (1, ["COMPILE_ERROR", " ModuleNotFoundError"])
    assert "note: it imports helper.py, and a kernel is tried as one file, away from its folder" in out
    Path("softmax.py").write_text("from helper import softmax\ndef f(:\n")
    out = run("evaluate", "softmax.py:softmax", *told)[1]
    assert out.startswith("COMPILE_ERROR: SyntaxError: ")
    assert "note:" not in out


def test_evaluate_takes_a_script_at_its_word_and_says_so(run: Run) -> None:
    Path("softmax.py").write_text("def softmax(x):\n    return x\n")  # it is run fourteen times: without torch
    Path("test_softmax.py").write_text(SCRIPT)
    status, out, _ = run(
        "--root", ".", "evaluate", "softmax.py", "--problem", "test_softmax.py", "--device", "cpu", "--json"
    )
    evaluation = json.loads(out.splitlines()[-1])
    assert (status, evaluation["status"], evaluation["trust"]) == (0, "PASSED", "reported")
    assert "  note: trust: reported." in out
    Path("test_softmax.py").write_text(SCRIPT + "raise SystemExit(2)\n")
    status, out, _ = run("--root", ".", "evaluate", "softmax.py", "--problem", "test_softmax.py", "--device", "cpu")
    assert (status, out.split(":")[0]) == (1, "SUSPECT")


def test_evaluate_needs_one_problem(run: Run) -> None:
    assert run("evaluate", "softmax.py")[2].startswith("give either --problem FILE, or --reference FUNCTION")
    both = run("evaluate", *FUNCTIONS, "--problem", "x.py")
    assert both[2].startswith("give either --problem FILE")
    assert "--shape and --dtype are given without --reference" in run("import", "softmax.py", "--shape", "4")[2]


@pytest.mark.parametrize("page", ["functions.md"])
def test_the_commands_of_a_page_do_what_it_says(run: Run, page: str) -> None:
    commands = re.findall(r"^    kopt-mcp (.*)$", (PAGES / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert commands
    for command in commands:
        status, _, err = run(*shlex.split(command))
        assert status == 0, f"{command}\n{err}"


def test_every_command_and_link_of_the_pages_exists(run: Run) -> None:
    for page in PAGES.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for command in re.findall(r"^    kopt-mcp (\S+)", text, re.MULTILINE):
            assert run(command, "--help")[0] == 0
        links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
        assert [link for link in links if not (page.parent / link).exists()] == []
