"""`kopt-mcp doctor`: usable only where the evaluator tells right from wrong; every gap says what to do."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from evaluating import running_evaluator
from test_platforms_detect import machine, put, recorded

from kopt_mcp import doctor, selftest
from kopt_mcp.__main__ import main
from kopt_mcp.doctor import Check, Doctor, isolation, shown, unwritable
from kopt_mcp.errors import KoptError, ToolUnavailable
from kopt_mcp.evaluator.records import Evaluation, Job, TorchDevice
from kopt_mcp.interpreter import Interpreter
from kopt_mcp.lock import Locks
from kopt_mcp.platforms import Host
from kopt_mcp.project import Project
from kopt_mcp.watch import Watch

SHUT_IN = {"session": "own", "network": "on", "landlock": "on, abi 4"}
TORCH = TorchDevice("cpu", 0, "Some CPU", "x86_64", 1, 1, 1, "c", {"python": "3.12.3", "torch": "2.9.0+cpu"})
NO_TORCH = "the interpreter '/p' has no torch; run `/p -m pip install torch`, or set `python:` in kopt.yaml."


@dataclass
class Fake:
    """A place whose evaluator says what it is told to."""

    root: Path
    torch: dict[str, TorchDevice | KoptError] = field(default_factory=lambda: {"cpu": TORCH})
    verdicts: tuple[str, str] = ("PASSED", "INCORRECT_NUMERICAL")
    jobs: list[Job] = field(default_factory=list)

    @property
    def evaluator(self) -> Fake:
        return self

    def interpreter(self) -> Interpreter:
        return Interpreter("/p", "the project's .venv")

    def torch_device(self, device: str) -> TorchDevice:
        answer = self.torch.get(device, ToolUnavailable("torch 2.9.0+cpu of /p sees no GPU."))
        if isinstance(answer, KoptError):
            raise answer
        return answer

    def evaluate(self, job: Job, watch: Watch) -> Evaluation:
        self.jobs.append(job)
        status = self.verdicts[len(self.jobs) - 1]
        return Evaluation(status, "the detail", isolation=SHUT_IN, wall_s=0.5)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Fake:
    root = tmp_path / "project"
    root.mkdir()
    return Fake(root)


def host(root: Path, *, gpu: bool = False) -> Host:
    """A machine with a compiler, and maybe an H200 whose toolkit is not installed."""
    put(root, "/usr/bin/cc", program=True)
    folders = {"XDG_CACHE_HOME": str(root / "cache"), "XDG_DATA_HOME": str(root / "data")}
    return machine(root, {"nvidia-smi --query-gpu": recorded("nvidia_query_h200.csv")} if gpu else {}, **folders)


def examined(place: Fake, tmp_path: Path, *, gpu: bool = False) -> dict[str, Check]:
    checks = list(Doctor(place, host(tmp_path, gpu=gpu), Locks(tmp_path, bound_s=0.0)).examine())  # type: ignore[arg-type]
    assert all(check.todo or check.state == "fine" for check in checks), "a gap without a next step"
    return {check.name: check for check in checks}


def failed(checks: dict[str, Check]) -> list[str]:
    return [name for name, check in checks.items() if check.state == "fail"]


def test_a_machine_with_torch_and_no_gpu_is_usable(place: Fake, tmp_path: Path) -> None:
    checks = examined(place, tmp_path)
    assert failed(checks) == []
    assert checks["interpreter"].found == "/p (the project's .venv), Python 3.12.3"
    assert checks["GPU"].state == checks["triton"].state == "note"
    assert checks["self-test"].found.startswith("a right torch kernel PASSED, a wrong one INCORRECT_NUMERICAL")
    assert {job.device for job in place.jobs} == {"cpu"}
    assert len({job.candidate_sha256 for job in place.jobs}) == 2


def test_without_torch_the_line_to_run_is_shown_and_nothing_else_is_tried(place: Fake, tmp_path: Path) -> None:
    place.torch["cpu"] = ToolUnavailable(NO_TORCH)
    checks = examined(place, tmp_path, gpu=True)
    assert failed(checks) == ["interpreter", "self-test"]
    assert checks["interpreter"].found == "the interpreter '/p' has no torch"
    assert checks["interpreter"].todo.startswith("run `/p -m pip install torch`")
    assert place.jobs == []


def test_a_gpu_that_torch_does_not_see_is_a_failure(place: Fake, tmp_path: Path) -> None:
    checks = examined(place, tmp_path, gpu=True)
    assert failed(checks) == ["torch on GPU"]
    assert checks["torch on GPU"].found == "torch 2.9.0+cpu of /p sees no GPU."
    assert "the build of torch that fits the driver" in checks["torch on GPU"].todo
    assert {job.device for job in place.jobs} == {"cpu"}


def test_on_a_gpu_the_self_test_is_a_triton_kernel_there(place: Fake, tmp_path: Path) -> None:
    seen = replace(TORCH, kind="cuda", name="NVIDIA H200", versions={**TORCH.versions, "triton": "3.5", "cuda": "12.8"})
    place.torch |= {"cpu": replace(TORCH, versions=seen.versions), "cuda:0": seen}
    checks = examined(place, tmp_path, gpu=True)
    assert failed(checks) == []
    assert {job.device for job in place.jobs} == {"cuda:0"}
    assert checks["self-test"].found.startswith("a right Triton kernel PASSED")
    assert checks["lock"].found.startswith("NVIDIA H200 is free")
    assert (checks["ncu"].state, checks["nvcc"].state) == ("note", "note")


@pytest.mark.parametrize("verdicts", [("PASSED", "PASSED"), ("COMPILE_ERROR", "COMPILE_ERROR"), ("TIMEOUT", "TIMEOUT")])
def test_an_evaluator_that_does_not_tell_right_from_wrong_is_not_usable(
    place: Fake, tmp_path: Path, verdicts: tuple[str, str]
) -> None:
    place.verdicts = verdicts
    assert failed(examined(place, tmp_path)) == ["self-test"]


def test_a_held_device_is_not_disturbed(place: Fake, tmp_path: Path) -> None:
    (cpu,) = (d for detect in doctor.PLATFORMS for d in detect(host(tmp_path)).devices)
    with Locks(tmp_path).device(cpu.uuid, cpu.name, Watch()):
        checks = examined(place, tmp_path)
    assert failed(checks) == ["lock", "self-test"]
    assert "has been held for 0 s by process" in checks["lock"].found
    assert checks["lock"].todo == "wait for it, or end that process."
    assert place.jobs == []


def test_a_folder_that_cannot_be_written_says_what_it_costs(place: Fake, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be made")
    (tmp_path / "wall").write_text("")
    place.root = tmp_path / "wall" / "project"
    checks = examined(place, tmp_path)
    assert failed(checks) == ["project folder"]
    assert checks["cache folder"].state == "note"
    assert "nothing is remembered" in checks["cache folder"].found
    assert unwritable(tmp_path / "not" / "made" / "yet") == ""


def test_each_part_of_the_isolation_that_is_off_says_how_to_have_it() -> None:
    lines = list(isolation({"session": "own", "network": "off: Operation not permitted", "landlock": "off: ENOSYS"}))
    assert [line.state for line in lines] == ["fine", "note", "note"]
    assert "user namespaces" in lines[1].todo
    assert "landlock among its lsm=" in lines[2].todo


def test_a_line_shows_its_state_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = shown(Check("triton", "note", "not installed", "for Triton kernels run `uv pip install triton` in it"))
    assert text.splitlines() == [
        "note  triton         not installed",
        "                     do: for Triton kernels run `uv pip",
        "                         install triton` in it",
    ]


def test_here_the_real_evaluator_passes_the_examination(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KOPT_PYTHON", sys.executable)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    locks = Locks(tmp_path)  # not the machine's: another test may hold that
    assert doctor.run(Project(tmp_path), as_json=True, locks=locks) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["usable"] is True
    last = answer["checks"][-1]
    assert (last["name"], last["state"]) == ("self-test", "fine")
    assert "a wrong one INCORRECT_NUMERICAL" in last["found"]


def test_an_interpreter_that_is_not_there_ends_with_status_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KOPT_PYTHON", "/no/such/python")
    assert main(["--root", str(tmp_path), "doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAIL  interpreter    the interpreter '/no/such/python' cannot be started" in out
    assert out.endswith("not usable: interpreter, self-test\n")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_self_tests_triton_kernel_is_right() -> None:
    with running_evaluator() as evaluator:
        right, wrong = selftest.run(evaluator, "cpu", triton=True)
    assert (right.status, wrong.status) == ("PASSED", "INCORRECT_NUMERICAL")
