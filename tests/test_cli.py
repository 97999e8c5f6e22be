"""The command line does what its help and the README say."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kopt_mcp import __version__
from kopt_mcp.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
TINY = Path(__file__).parent / "data" / "tiny"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Run a command in this process; returns exit status, standard output and standard error."""
    monkeypatch.setenv("KOPT_PYTHON", sys.executable)
    monkeypatch.setenv("KOPT_MEMORY", "project")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def command(*words: str) -> tuple[int, str, str]:
        try:
            status = main(list(words))
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        out = capsys.readouterr()
        return status, out.out, out.err

    return command


def test_the_version_is_the_packages(run) -> None:  # type: ignore[no-untyped-def]
    assert run("--version") == (0, f"kopt-mcp {__version__}\n", "")


def test_every_command_has_help(run) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = run("--help")
    commands = re.findall(r"^    (\S+)(?: {2,}|$)", out, re.MULTILINE)
    assert status == 0
    assert {"serve", "call", "log", "evaluate", "detect-gpu", "static-profile"} <= set(commands)
    assert all(run(command, "--help")[0] == 0 for command in commands)


def test_a_name_that_is_not_known_gives_no_peak(run) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = run("detect-gpu", "--as", "NVIDIA H2000", "--json")
    assert (status, json.loads(out)["peak_gbps"]) == (0, None)
    assert json.loads(run("detect-gpu", "--as", "NVIDIA H200", "--json")[1])["peak_gbps"] == 4800.0


def test_a_tool_called_from_a_shell_answers_or_refuses_as_over_mcp(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = run("--root", str(tmp_path), "call", "log")
    assert (status, json.loads(out)["experiments"]) == (0, [])
    status, out, err = run("--root", str(tmp_path), "call", "baseline", '{"kernel_path": "no.py"}')
    assert (status, out) == (1, "")
    assert err == "kernel_path 'no.py' does not exist in the project; check the path.\n"
    assert run("--root", str(tmp_path), "call", "optimise")[2].startswith("there is no tool 'optimise'; the tools are")
    assert run("--root", str(tmp_path), "call", "log", "{")[2].startswith("the arguments are not JSON:")
    assert run("--root", str(tmp_path), "call", "log", "[1]")[2].startswith("the arguments are [1], which names none;")


def test_the_tools_are_described_to_a_shell_as_to_a_client(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = run("call", "--root", str(tmp_path))
    assert (status, len(re.findall(r"^\w+: ", out, re.MULTILINE))) == (0, 9)
    assert "\nverify: Check whether the candidate is right; a wrong one is taken back at once. " in out
    assert (
        "\n  experiment* (string): The handle from baseline.\n  sanitize (boolean): Also run compute-sanitizer.\n"
        in out
    )
    assert "\n  gpu (auto|nvidia|amd|cpu): Default auto.\n" in out


def test_the_project_is_named_before_a_command_or_after_it_and_must_be_there(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    none = f"{tmp_path} has no experiment; an agent's first call of baseline begins one.\n"
    for words in (("log",), ("log", "--verify")):
        assert run(*words, "--root", str(tmp_path)) == run("--root", str(tmp_path), *words) == (0, none, "")
    for words in (("log",), ("report",), ("call", "log")):
        status, out, err = run(*words, "--root", str(tmp_path / "nowhere"))
        assert (status, out) == (1, "")
        assert err == (
            f"the project {tmp_path}/nowhere is no folder; nothing can be kept there; name one (--root FOLDER).\n"
        )


def test_a_reader_that_has_seen_enough_is_no_error_to_be_reported(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "kopt_mcp", "--root", str(tmp_path), "log"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, timeout=60, env=environment)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("words", [("serve", "--http", "--port", "99999"), ("report", "--watch", "--port", "-1")])
def test_a_port_that_is_none_is_refused_in_words(run, words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert err.endswith(f"argument --port: {words[-1]!r} is no port; give a number from 0 to 65535\n")


def test_a_task_that_is_not_there_is_not_called_of_unknown_format(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert run("import", str(tmp_path / "no.py")) == (
        1, "", f"{tmp_path}/no.py does not exist; there is nothing to recognise; check the path.\n"
    )  # fmt: skip


def test_evaluate_exits_with_zero_only_for_a_kernel_that_is_right(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    problem = str(TINY / "test_scale.py")
    status, out, _ = run("evaluate", str(TINY / "scale.c"), "--problem", problem, "--device", "cpu", "--json")
    evaluation = json.loads(out.splitlines()[-1])
    assert (status, evaluation["status"]) == (0, "PASSED")
    assert evaluation["workloads"][0]["timing"]["latency_us"] > 0
    wrong = tmp_path / "scale.c"
    wrong.write_text((TINY / "scale.c").read_text().replace("2.0f *", "2.5f *"))
    status, out, _ = run("evaluate", str(wrong), "--problem", problem, "--device", "cpu")
    assert status == 1
    assert out.startswith("INCORRECT_NUMERICAL:")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device", "tpu"], "--device is 'tpu'; it is cpu, or cuda:N for the GPU of that number."),
        (["--shape", "4x4"], "--shape and --dtype are for a --reference; a problem has its own; leave them out."),
    ],
)
def test_words_of_evaluate_that_mean_nothing_are_refused(run, words: list[str], told: str) -> None:  # type: ignore[no-untyped-def]
    given = ["evaluate", str(TINY / "scale.c"), "--problem", str(TINY / "test_scale.py")]
    status, _, err = run(*given, *words)
    assert (status, err.strip()) == (1, told)


def test_an_empty_problem_is_called_empty(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "test_scale.py").write_text("\n", encoding="utf-8")
    status, _, err = run("evaluate", str(TINY / "scale.c"), "--problem", str(tmp_path / "test_scale.py"))
    assert (status, "test_scale.py is empty" in err) == (1, True), err


def test_the_finished_experiments_replay(run) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = run("--root", str(ROOT), "log")
    assert status == 0
    assert "softmax-h200-2: 1748.9 -> 4203.2 gbps, target 3800, TARGET_MET" in out.splitlines()
    assert "target met" in run("--root", str(ROOT), "log", "softmax-h200-2")[1]


def test_every_kopt_command_of_the_readme_is_one_that_exists(run) -> None:  # type: ignore[no-untyped-def]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (kopt-mcp[^#\n]*)", text, re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line)[1:]
        command = [w for w in words if not w.startswith("-")][:1]
        assert run(*command, "--help")[0] == 0, line


def test_every_process_numbers_gpus_as_nvidia_smi_does_unless_told_otherwise(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for told, kept in ((None, "PCI_BUS_ID"), ("FASTEST_FIRST", "FASTEST_FIRST")):
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
        if told:
            monkeypatch.setenv("CUDA_DEVICE_ORDER", told)
        assert run("--root", str(ROOT), "log", "softmax-h200-1")[0] == 0
        assert os.environ["CUDA_DEVICE_ORDER"] == kept
