"""A problem file as a program and as a test of pytest's."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from evaluating import CHEATS, PROBLEMS

from kopt_mcp.evaluator import script
from kopt_mcp.evaluator.files import load_problem
from kopt_mcp.evaluator.records import Evaluation, Job
from kopt_mcp.problem import Problem

ROOT = Path(__file__).resolve().parent.parent
MEASURED = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
"""What has coverage measure a program that a test starts, where coverage runs."""
MAIN = "\nif __name__ == '__main__':\n    raise SystemExit(PROBLEM.main())\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A problem file of the smallest workloads, with its kernel beside it."""
    made = tmp_path_factory.mktemp("problem")
    text = (PROBLEMS / "softmax.py").read_text()
    text = text.replace("layouts=LAYOUTS,", "comparisons={'torch': lambda x: torch.softmax(x, dim=-1)},")
    (made / "test_softmax.py").write_text(text.replace("LAYOUTS, ", "") + "\ntest_kernel = PROBLEM.as_test()\n" + MAIN)
    shutil.copy(CHEATS / "controls" / "plain.py", made / "softmax.py")
    return made


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "test_softmax.py"), "--device", "cpu", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **MEASURED}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_json_is_one_line_and_the_last(folder: Path) -> None:
    done = run(folder, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["kernel"], report["correctness"], report["status"]) == ("softmax", True, "pass")
    assert report["latency_us"] > 0
    assert report["gbps"] > 0
    assert report["speedup"] > 0
    assert sum(line.startswith("{") for line in done.stdout.splitlines()) == 1


def test_a_wrong_kernel_has_a_reason_and_an_exit_code(folder: Path) -> None:
    done = run(folder, "--json", "--kernel", str(CHEATS / "zeros.py"))
    assert done.returncode == 1
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["correctness"], report["status"], report["latency_us"]) == (False, "fail", None)
    assert report["error"].startswith("INCORRECT_NUMERICAL: 3x257-fp32, normally distributed values")
    assert report["error"] in done.stderr


def test_correctness_alone_times_nothing(folder: Path) -> None:
    done = run(folder, "--json", "--correctness")
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[-1])["latency_us"] is None


def test_a_kernel_that_exits_with_zero_does_not_take_the_program_along(folder: Path) -> None:
    done = run(folder, "--json", "--correctness", "--kernel", str(CHEATS / "exits_with_zero.py"))
    assert done.returncode == 1
    assert "RUNTIME_ERROR" in json.loads(done.stdout.splitlines()[-1])["error"]
    assert '"PASSED"' not in done.stdout, "what the kernel prints is not the program's own output"


def test_a_kernel_that_is_not_there_is_named(folder: Path) -> None:
    done = run(folder, "--json", "--kernel", "nowhere.py")
    assert done.returncode == 1
    assert "there is no kernel file nowhere.py" in json.loads(done.stdout.splitlines()[-1])["error"]


def test_a_kernel_cannot_read_the_folder_that_the_program_was_started_from(folder: Path) -> None:
    curious = folder / "curious.py"
    curious.write_text(
        "import torch\n"
        f"def softmax(x):\n    open({str(folder / 'test_softmax.py')!r}).read()\n    return torch.softmax(x, dim=-1)\n"
    )
    done = run(folder, "--json", "--correctness", "--kernel", str(curious))
    assert "PermissionError" in json.loads(done.stdout.splitlines()[-1])["error"]


def test_pytest_collects_the_problem_as_a_test(folder: Path) -> None:
    """Twice, since the second evaluation finds a process in which torch has been at work."""
    again = folder / "test_softmax_again.py"
    shutil.copy(folder / "test_softmax.py", again)
    files = [str(folder / "test_softmax.py"), str(again)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **MEASURED}
    (folder / "softmax.py").write_text("import torch\nprint('at import')\n" + (folder / "softmax.py").read_text())
    right = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert right.returncode == 0, right.stdout
    shutil.copy(CHEATS / "zeros.py", folder / "softmax.py")
    wrong = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert wrong.returncode == 1
    assert "INCORRECT_NUMERICAL" in wrong.stdout


@pytest.mark.parametrize(("device", "forked"), [("cpu", True), ("cuda:0", False)])
def test_a_program_that_has_asked_for_a_gpu_is_not_forked(
    monkeypatch: pytest.MonkeyPatch, device: str, forked: bool
) -> None:
    """Its forks would be refused the GPU."""
    seen = []

    def report(problem: Problem, options: argparse.Namespace, fork: bool) -> dict[str, Any]:
        seen.append(fork)
        return {"correctness": True}

    monkeypatch.setattr(script, "_report", report)
    monkeypatch.setattr(script, "may_have_computed", lambda: False)
    assert script.run(load_problem((PROBLEMS / "softmax.py").read_bytes(), "softmax.py"), ["--device", device]) == 0
    assert seen == [forked]


def softmax(**changed: Any) -> Problem:
    """The problem of the folder, declared otherwise."""
    return replace(load_problem((PROBLEMS / "softmax.py").read_bytes(), str(PROBLEMS / "softmax.py")), **changed)


def test_who_asks_for_no_json_gets_the_lines_and_the_error_on_its_own_stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = {"correctness": False, "error": "off by 3", "lines": ["softmax.py on a CPU: off by 3"]}
    monkeypatch.setattr(script, "_report", lambda problem, options, fork: dict(report))
    assert script.run(softmax(), ["--device", "cpu"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("softmax.py on a CPU: off by 3\n", "off by 3\n")


class Judge:
    """Stands for a harness: its verdicts, by kind of job."""

    def __init__(self, **verdicts: Evaluation) -> None:
        self.verdicts = verdicts
        self.jobs: list[Job] = []

    def evaluate(self, problem: Problem, job: Job, said: object) -> Evaluation:
        self.jobs.append(job)
        return self.verdicts[job.kind]


def test_a_kernel_that_fails_only_as_it_is_timed_has_failed(tmp_path: Path) -> None:
    kernel = tmp_path / "softmax.py"
    kernel.write_text("def softmax(x): ...\n")
    right = Evaluation("PASSED", "")
    cheated = Evaluation("CHEATED", "it changed the clock")
    options = argparse.Namespace(device="cpu", correctness=False)
    judge: Any = Judge(verify=right, benchmark=cheated)
    assert script._evaluate(judge, softmax(), kernel, options) == (cheated, {})
    assert [(job.kind, job.candidate_sha256) for job in judge.jobs] == [
        (kind, sha256(kernel.read_bytes()).hexdigest()) for kind in ("verify", "benchmark")
    ]
    kernel.write_text("import triton\n")
    assert script._evaluate(judge, softmax(), kernel, options) == (right, {}), "its interpreter is not timed"


def test_the_kernel_is_the_one_that_the_problem_names_or_lies_beside_it(tmp_path: Path) -> None:
    def beside(name: str) -> Path:
        (tmp_path / f"{name}.py").touch()
        return script.default_kernel(problem_of(tmp_path, "softmax-backward"))

    named = softmax(kernel="/somewhere/fast.cu")
    assert script.default_kernel(named) == Path("/somewhere/fast.cu")
    plain, backward = problem_of(tmp_path, "softmax"), problem_of(tmp_path, "softmax-backward")
    assert script.default_kernel(plain) == tmp_path / "triton_template.py", "which is told to be missing"
    assert script.default_kernel(backward) == tmp_path / "triton_backward_template.py"
    assert [beside(name).name for name in ("softmax", "triton_template", "triton_backward_template")] == [
        "softmax.py",
        "triton_template.py",
        "triton_backward_template.py",
    ]
    assert script.default_kernel(plain) == tmp_path / "triton_template.py"


def problem_of(folder: Path, name: str) -> Problem:
    """A problem whose file lies in this folder."""
    scope: dict[str, Any] = {}
    text = "def inputs(make, rows, cols):\n    return [make.normal(rows, cols)]\n"
    exec(compile(text, folder / "p.py", "exec"), scope)
    return softmax(inputs=scope["inputs"], name=name, entry="softmax")
