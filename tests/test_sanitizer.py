"""compute-sanitizer on request: a stub of the tool around the real target, and what is made of its words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fakes import CPU, GPU, Project, kernel
from profiling import digest

from kopt_mcp.errors import InputRefused
from kopt_mcp.evaluator.records import Job, WorkloadInfo
from kopt_mcp.models import SanitizerRun
from kopt_mcp.platforms.host import Host, Ran
from kopt_mcp.profiling.sanitizer import Sanitizer, judge
from kopt_mcp.watch import Watch

WRITE = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at _scale_kernel+0x160 in FOLDER/kernel.py:12
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x7f6fd1c00004 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:main in other.c:99 [0x1]
=========
========= ERROR SUMMARY: 2 errors
"""
OLD_WRITE = """\
========= Invalid __shared__ read of size 8 bytes
=========     at 0x160 in /src/demo.cu:6:unaligned_kernel(void)
========= ERROR SUMMARY: 1 error
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum(int *, int *)+0x90 in FOLDER/kernel.cu:41
=========     and Read access at sum(int *, int *)+0xe0 in FOLDER/kernel.cu:44 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
UNREACHED = "========= COMPUTE-SANITIZER\n========= Error: No attachable process found. compute-sanitizer timed-out.\n"
STUB = """#!/bin/sh
here=$(dirname "$0")
[ "$1" = --version ] && { echo "NVIDIA (R) Compute Sanitizer Version 2025.3.1"; exit 0; }
while :; do
    case $1 in
    --tool) tool=$2 ;;
    --log-file) log=$2 ;;
    --*) ;;
    *) break ;;
    esac
    shift 2
done
[ "$PYTORCH_NO_CUDA_MEMORY_CACHING" = 1 ] || exit 3
{ echo "$tool" >> "$here/calls"; } 2> /dev/null
"$@" || exit 1
sed "s,FOLDER,$PWD," "$here/says" > "$log"
grep -q "SUMMARY: 0" "$here/says" || exit 86
"""
PROBLEM = """
from kopt_mcp.problem import Problem, Workload

PROBLEM = Problem(
    name="scale",
    reference=lambda x: x * 2,
    inputs=lambda make, n: [make.normal(n)],
    workloads=[Workload({"n": n}) for n in (7, 100, 5)],
    bytes="2 * n * itemsize",
    flops="n",
    bound="memory",
)
"""
EXACT = "def scale(x):\n    return x * 2\n"
INFOS = tuple(WorkloadInfo(f"{n}-fp32", "float32", True, 8.0 * n, n) for n in (7, 100, 5))


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """The folder of a compute-sanitizer that runs its target and then says what is in its file `says`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "compute-sanitizer").write_text(STUB)
    (folder / "compute-sanitizer").chmod(0o755)
    (folder / "says").write_text(CLEAN)
    return folder


def job(folder: Path, text: str, suffix: str = ".py") -> Job:
    problem, candidate = folder / "test_scale.py", folder / f"scale{suffix}"
    problem.write_text(PROBLEM)
    candidate.write_text(text)
    return Job("verify", str(problem), digest(problem), str(candidate), digest(candidate), "cpu", timeout_s=60.0)


def sanitize(work: Job, host: Host, **rest: object) -> tuple[SanitizerRun, ...]:
    sanitizer = Sanitizer(lambda: sys.executable, host, **rest)  # type: ignore[arg-type]
    return sanitizer(device=GPU, job=work, workloads=INFOS, watch=Watch())


# Around the real target


def test_the_smallest_workloads_are_called_in_memory_that_ends_where_a_tensor_ends(tmp_path: Path, stub: Path) -> None:
    exact = "assert x.numel() in (5, 7) and x.untyped_storage().nbytes() == 4 * x.numel()"
    work = job(tmp_path, f"def scale(x):\n    {exact}\n    return x * 2\n")
    (run,) = sanitize(work, Host(env={"PATH": str(stub)}))
    assert (run.tool, run.status, run.why) == ("memcheck", "passed", "")
    assert "landlock on" in run.isolation
    assert "network off: kept, so that a tool can reach the process" in run.isolation
    assert (stub / "calls").read_text() == "memcheck\n"


def test_a_candidate_that_fails_under_it_without_a_finding_is_not_called_right(tmp_path: Path, stub: Path) -> None:
    work = job(tmp_path, "def scale(x):\n    assert x.numel() != 7, 'seven'\n    return x * 2\n")
    (run,) = sanitize(work, Host(env={"PATH": str(stub)}))
    assert run.status == "not run"
    assert run.why.startswith("the candidate failed while calling 7-fp32, without a finding: AssertionError: seven")
    assert run.isolation.startswith("resource limits only"), "the sandbox might have been why: once more without it"
    assert (stub / "calls").read_text() == "memcheck\nmemcheck\n"


def test_a_finding_names_the_candidates_own_line(tmp_path: Path, stub: Path) -> None:
    (stub / "says").write_text(WRITE)
    (run,) = sanitize(job(tmp_path, "def scale(x):\n    return x * 2\n"), Host(env={"PATH": str(stub)}))
    assert (run.status, run.finding, run.place) == (
        "failed",
        "Invalid __global__ write of size 4 bytes",
        "kernel.py:12",
    )
    assert run.words() == "memcheck failed: Invalid __global__ write of size 4 bytes at kernel.py:12"


# Where it cannot be run


def test_a_missing_tool_says_how_to_install_it(tmp_path: Path) -> None:
    (run,) = sanitize(job(tmp_path, EXACT), Host(env={"PATH": "/nonexistent"}, root=tmp_path))
    assert run.words() == (
        "memcheck not run: compute-sanitizer was not found: install the CUDA toolkit, or "
        "`pip install nvidia-cuda-sanitizer-api` where your torch is"
    )


def test_the_one_that_pip_installs_is_found_beside_the_users_torch(tmp_path: Path) -> None:
    folder = tmp_path / "venv" / "lib" / "python3.12" / "site-packages" / "nvidia" / "cu13" / "bin"
    folder.mkdir(parents=True)
    (folder / "compute-sanitizer").write_text(STUB)
    (folder / "compute-sanitizer").chmod(0o755)
    host = Host(env={"PATH": "/nonexistent"}, root=tmp_path)
    launch = FakeLaunch(CLEAN)
    sanitizer = Sanitizer(lambda: "/venv/bin/python", host, launch)  # type: ignore[arg-type]
    (run,) = sanitizer(device=GPU, job=job(tmp_path, EXACT), workloads=INFOS, watch=Watch())
    assert run.status == "passed"


def test_other_devices_have_no_such_tool(tmp_path: Path) -> None:
    sanitizer = Sanitizer(lambda: sys.executable, Host(env={"PATH": "/nonexistent"}, root=tmp_path))
    (run,) = sanitizer(device=CPU, job=job(tmp_path, EXACT), workloads=INFOS, watch=Watch())
    assert run.words() == (
        "memcheck not run: compute-sanitizer checks CUDA kernels, and this experiment runs on Some CPU"
    )


class FakeLaunch:
    """Leaves a log and an answer as the tool and its target would."""

    def __init__(self, *logs: str, failure: str = "") -> None:
        self.logs, self.failure, self.tools = list(logs), failure, []

    def __call__(self, argv: list[str], *, folder: Path, timeout_s: float, watch: Watch) -> Ran:
        self.tools.append(argv[argv.index("--tool") + 1])
        log = self.logs.pop(0)
        (folder / "sanitizer.log").write_text(log)
        inside = json.loads((folder / "job.json").read_text())["shut_in"]
        (folder / "answer.json").write_text(f'{{"stage": "done", "isolation": "{"all" if inside else "limits only"}"}}')
        return Ran(returncode=0 if "SUMMARY: 0" in log else 1, failure=self.failure)  # type: ignore[arg-type]


def test_where_the_tool_cannot_reach_its_target_from_the_sandbox_it_is_run_outside_and_says_so(
    tmp_path: Path, stub: Path
) -> None:
    launch = FakeLaunch(UNREACHED, CLEAN)
    (run,) = sanitize(job(tmp_path, EXACT), Host(env={"PATH": str(stub)}), launch=launch)
    assert (run.status, run.isolation) == ("passed", "limits only")


def test_once_only_the_run_outside_came_to_an_end_the_other_is_not_tried_again(tmp_path: Path, stub: Path) -> None:
    launch = FakeLaunch(UNREACHED, CLEAN, CLEAN)
    sanitizer = Sanitizer(lambda: sys.executable, Host(env={"PATH": str(stub)}), launch)  # type: ignore[arg-type]
    for _ in range(2):
        (run,) = sanitizer(device=GPU, job=job(tmp_path, EXACT), workloads=INFOS, watch=Watch())
        assert (run.status, run.isolation) == ("passed", "limits only")
    assert launch.logs == []


def test_what_does_not_end_in_time_anywhere_is_not_run(tmp_path: Path, stub: Path) -> None:
    launch = FakeLaunch("", "", failure="timeout")
    (run,) = sanitize(job(tmp_path, EXACT), Host(env={"PATH": str(stub)}), launch=launch)
    assert run.status == "not run"
    assert run.why.startswith("no end in time, while done")
    assert launch.logs == []


# Races


@pytest.mark.parametrize(
    ("text", "tools"),
    [("__shared__ float tile[32];", ["memcheck", "racecheck"]), ("int x;", ["memcheck"])],
    ids=["shared memory", "none"],
)
def test_races_are_looked_for_where_the_kernel_has_shared_memory(
    tmp_path: Path, stub: Path, text: str, tools: list[str]
) -> None:
    launch = FakeLaunch(CLEAN, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n")
    runs = sanitize(job(tmp_path, text, ".cu"), Host(env={"PATH": str(stub)}), launch=launch)
    assert launch.tools == tools
    assert [run.status for run in runs] == ["passed"] * len(tools)


def test_a_kernel_that_writes_outside_is_not_looked_at_for_races(tmp_path: Path, stub: Path) -> None:
    launch = FakeLaunch(WRITE)
    (run,) = sanitize(job(tmp_path, "__shared__", ".cu"), Host(env={"PATH": str(stub)}), launch=launch)
    assert run.status == "failed"


# What is made of its words

DONE = {"stage": "done"}


def test_a_race_names_the_first_of_its_two_places() -> None:
    run = judge("racecheck", RACE.replace("FOLDER", "/tmp/x"), {**DONE, "shift": 1}, Ran(returncode=86), "/tmp/x")
    assert run.status == "failed"
    assert run.finding.startswith("Error: Race reported between Write access")
    assert run.place == "kernel.cu:40", "the copy is a line longer than the candidate"


def test_older_releases_write_the_place_the_other_way_round() -> None:
    assert judge("memcheck", OLD_WRITE, DONE, Ran(returncode=86), "/tmp/x").place == "/src/demo.cu:6"


def test_errors_of_a_kind_that_is_not_known_are_a_failure_all_the_same() -> None:
    log = (
        "========= COMPUTE-SANITIZER\n========= Something new\n=========     at x\n========= ERROR SUMMARY: 3 errors\n"
    )
    run = judge("memcheck", log, DONE, Ran(returncode=86), "/tmp/x")
    assert (run.status, run.finding) == ("failed", "Something new")
    bare = judge("memcheck", "========= ERROR SUMMARY: 3 errors\n", DONE, Ran(returncode=86), "/tmp/x")
    assert (bare.status, bare.finding) == ("failed", "3 findings")


def test_a_mere_warning_of_a_race_is_no_failure() -> None:
    log = "========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)\n"
    assert judge("racecheck", log, DONE, Ran(returncode=0), "/tmp/x").status == "passed"


@pytest.mark.parametrize(
    ("log", "answer", "ran"),
    [
        (CLEAN, {"stage": "calling 7-fp32"}, Ran(returncode=0)),
        (CLEAN, DONE, Ran(returncode=1)),
        ("", DONE, Ran(returncode=0)),
        ("ERROR SUMMARY: 0 errors\n", DONE, Ran(returncode=0)),
    ],
    ids=["the target left early", "the tool failed", "no log", "not the tool's own line"],
)
def test_nothing_less_than_a_whole_clean_run_is_a_pass(log: str, answer: dict[str, object], ran: Ran) -> None:
    assert judge("memcheck", log, answer, ran, "/tmp/x").status == "not run"


# In the loop


class FakeSanitize:
    def __init__(self, *runs: SanitizerRun) -> None:
        self.runs, self.workloads = runs, ()

    def __call__(self, **request: object) -> tuple[SanitizerRun, ...]:
        self.workloads = request["workloads"]
        return self.runs


def test_a_finding_fails_the_verification_and_takes_the_candidate_back(project: Project) -> None:
    bad = SanitizerRun(tool="memcheck", status="failed", finding="Invalid __global__ read of size 2", place="k.py:3")
    name = project.diagnosed()
    loop = project.reopened(sanitize=FakeSanitize(bad))
    loop.apply_patch(name, 1, "it is faster", content=kernel(2.0))
    result = loop.verify(name, sanitize=True)
    assert (result.correct, result.status, result.reverted) == (False, "RUNTIME_ERROR", True)
    assert result.detail == result.sanitizer.replace("memcheck", "compute-sanitizer: memcheck", 1)
    assert project.text == kernel()
    assert loop.decide(name).status == "FAILED"


def test_a_pass_is_told_and_journalled_and_the_loop_goes_on(project: Project) -> None:
    watched = FakeSanitize(SanitizerRun(tool="memcheck", status="passed"))
    name = project.diagnosed()
    loop = project.reopened(sanitize=watched)
    loop.apply_patch(name, 1, "it is faster", content=kernel(2.0))
    result = loop.verify(name, sanitize=True)
    assert (result.correct, result.sanitizer, result.next) == (True, "memcheck passed", ("benchmark",))
    assert [w.name for w in watched.workloads] == ["4096x4096-fp32", "127x1000-fp32"]  # type: ignore[attr-defined]
    assert '"status":"passed"' in (project.root / "experiments" / name / "journal.jsonl").read_text()


def test_it_is_not_run_unless_asked_for_nor_on_a_wrong_kernel(project: Project) -> None:
    watched = FakeSanitize(SanitizerRun(tool="memcheck", status="passed"))
    name = project.diagnosed()
    loop = project.reopened(sanitize=watched)
    loop.apply_patch(name, 1, "it is faster", content=kernel(2.0, VERIFY="INCORRECT_NUMERICAL"))
    assert loop.verify(name, sanitize=True).sanitizer == ""
    loop.decide(name)
    loop.apply_patch(name, 1, "it is faster again", content=kernel(3.0))
    assert loop.verify(name).sanitizer == ""
    assert watched.workloads == ()


def test_a_server_without_it_says_that_it_was_not_run(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(2.0))
    result = project.loop.verify(name, sanitize=True)
    assert (result.correct, result.sanitizer) == (True, "memcheck not run: this server was built without it")


def test_asking_for_it_takes_a_truth_value(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, kernel(2.0))
    with pytest.raises(InputRefused, match="sanitize is 'yes'; expected true or false"):
        project.loop.verify(name, sanitize="yes")  # type: ignore[arg-type]
