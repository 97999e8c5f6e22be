"""The profile target as it really runs: under another interpreter's rules, on the CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import timing
from profiling import EPYC, digest

from kopt_mcp.errors import InputRefused, ToolUnavailable
from kopt_mcp.evaluator.client import LocalEvaluator
from kopt_mcp.evaluator.records import Job, WorkloadInfo
from kopt_mcp.evaluator.target import MARKS
from kopt_mcp.evaluator.target_job import TargetJob, read_job
from kopt_mcp.platforms.host import Host, Ran
from kopt_mcp.platforms.launching import environment, launch, read_text, scratch
from kopt_mcp.profiling import Ladder, static_profile_json
from kopt_mcp.profiling.answer import read_answer
from kopt_mcp.profiling.compiler import authored_kernels
from kopt_mcp.profiling.cpu import loops
from kopt_mcp.watch import Watch

PROBLEM = """
import torch

from kopt_mcp.problem import Problem, Workload


def inputs(make, rows, cols):
    table = make.literal(torch.tensor([3, 7, 5]))
    return [make.normal(rows, cols), make.integers(rows, high=cols), table, 0.5]


PROBLEM = Problem(
    name="gather",
    reference=lambda x, index, table, factor: x,
    inputs=inputs,
    workloads=[
        Workload({"rows": 4, "cols": 8}, "float32", devices=("cpu",)),
        Workload({"rows": 64, "cols": 128}, "bfloat16", devices=("cuda",)),
        Workload({"rows": 16, "cols": 128}, "float16", devices=("cuda",)),
    ],
    bytes="rows * cols * itemsize",
    flops="rows * cols",
    bound="memory",
)
"""
KERNEL = "def gather(x, index, table, factor):\n    return x * factor\n"
C_PROBLEM = """
import torch

from kopt_mcp.problem import Problem, Workload

PROBLEM = Problem(
    name="scale",
    reference=lambda x: x * 2,
    inputs=lambda make, n: [make.normal(n)],
    workloads=[Workload({"n": 4096}, "float32")],
    bytes="2 * n * itemsize",
    flops="n",
    bound="memory",
    arguments=("in0", "out0", "n"),
)
"""
C_KERNEL = """// kopt: cflags = -O3
#include <stdint.h>
#include <stdlib.h>

void scale(const float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = 2 * x[i];
    for (int64_t i = 0; i < n; i++)
        if (out[i] > 1e30f) exit(1);
}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    problem, kernel = tmp_path / "test_gather.py", tmp_path / "gather.py"
    problem.write_text(PROBLEM)
    kernel.write_text(KERNEL)
    return problem, kernel


def target(problem: Path, kernel: Path, **fields: Any) -> tuple[Ran, dict[str, Any]]:
    """Run the target as the rungs do; how it ended, and what it answered."""
    job = TargetJob(
        **{
            "op": "call",
            "problem": str(problem),
            "problem_sha256": digest(problem),
            "device": "cpu",
            "candidate": str(kernel),
            "candidate_sha256": digest(kernel),
            **fields,
        }
    )
    with scratch() as folder:
        ran = launch(job.command(sys.executable, folder), folder=folder, timeout_s=60, watch=Watch())
        return ran, read_answer(folder)


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = TargetJob("each", "p.py", "0" * 64, "cuda:1", workloads=("a", "b"), marks="roctx", timeout_s=1.5)
    command = job.command("python3", tmp_path)
    assert read_job(tmp_path) == job
    assert command[:3] == ["python3", "-I", "-B"], "nothing of the environment's or of the folder's is imported"
    assert command[-1] == str(tmp_path)


def test_a_call_is_timed_on_the_host_inside_the_sandbox(files: tuple[Path, Path]) -> None:
    ran, answer = target(*files, calls=3)
    assert (ran.returncode, answer["stage"], answer["calls"]) == (0, "done", 3)
    assert answer["host_us"] > 0
    assert "limits on" in answer["isolation"]


def test_where_the_profiler_cannot_live_with_the_sandbox_the_answer_says_so(files: tuple[Path, Path]) -> None:
    _, answer = target(*files, shut_in=False)
    assert answer["isolation"].startswith("resource limits only")


def test_a_candidate_that_fails_is_quoted_with_its_line(files: tuple[Path, Path]) -> None:
    files[1].write_text("def gather(*a):\n    raise SystemExit('enough')\n")
    ran, answer = target(*files)
    assert (ran.returncode, answer["stage"]) == (1, "warming up")
    assert answer["error"] == "SystemExit: enough (line 2: raise SystemExit('enough'))"


def test_a_file_that_changed_is_not_run(files: tuple[Path, Path]) -> None:
    _, answer = target(*files, candidate_sha256="0" * 64)
    assert "is not the file that was hashed" in answer["error"]


def test_arguments_are_described_without_drawing_them(files: tuple[Path, Path]) -> None:
    _, answer = target(*files, op="arguments", candidate="", candidate_sha256="")
    assert (answer["entry"], answer["workload"]) == ("gather", "64x128-bf16")
    assert answer["arguments"] == [
        {"shape": [64, 128], "dtype": "bfloat16"},
        {"shape": [64], "dtype": "int64", "values": "integers", "low": 0, "high": 128},
        {"shape": [3], "dtype": "int64", "values": "integers", "low": 3, "high": 8},
        0.5,
    ]


def test_a_c_kernel_is_built_and_called(tmp_path: Path) -> None:
    ran, answer = target(*c_files(tmp_path))
    assert (ran.returncode, answer.get("error"), answer["stage"]) == (0, None, "done")


def test_perf_is_told_where_the_calls_begin_and_end(files: tuple[Path, Path]) -> None:
    job = TargetJob("call", str(files[0]), digest(files[0]), "cpu", str(files[1]), digest(files[1]), marks="perf")
    with scratch() as folder:
        pipes = [folder / "control", folder / "ack"]
        for pipe in pipes:
            os.mkfifo(pipe)
        control, ack = (os.open(pipe, os.O_RDWR) for pipe in pipes)
        os.write(ack, b"ack\n")
        os.write(ack, b"ack\n")
        launch(job.command(sys.executable, folder), folder=folder, timeout_s=60, watch=Watch())
        said = os.read(control, 64)
        os.close(control)
        os.close(ack)
    assert said == b"enable\ndisable\n"


ROCTX = """#include <stdio.h>

static void say(const char *what, int thread) {
    FILE *file = fopen("roctx.log", "a");
    fprintf(file, "%s %d\\n", what, thread);
    fclose(file);
}

void roctxProfilerResume(int thread) { say("resume", thread); }
void roctxProfilerPause(int thread) { say("pause", thread); }
"""


def test_rocprofv3_is_told_where_the_calls_begin_and_end(files: tuple[Path, Path], tmp_path: Path) -> None:
    """By a library of its own, as ROCm brings one; here it writes down what it is told."""
    source, library = tmp_path / "roctx.c", tmp_path / "roctx.so"
    source.write_text(ROCTX)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    job = TargetJob(
        *("call", str(files[0]), digest(files[0]), "cpu", str(files[1]), digest(files[1])),
        marks="roctx",
        library=str(library),
        shut_in=False,
    )
    with scratch() as folder:
        launch(job.command(sys.executable, folder), folder=folder, timeout_s=60, watch=Watch())
        assert read_answer(folder)["stage"] == "done"
        assert (folder / "roctx.log").read_text() == "resume 0\npause 0\n"


def test_ncu_is_told_by_the_cuda_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[str] = []

    class Runtime:
        def cudaProfilerStart(self) -> None:
            told.append("start")

        def cudaProfilerStop(self) -> None:
            told.append("stop")

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    marks = MARKS["cuda"](TargetJob("call", "", "", "cuda:0"), tmp_path)
    marks.start()
    marks.stop()
    assert told == ["start", "stop"]


def test_for_a_checker_every_workload_is_called_once_in_memory_of_its_size(tmp_path: Path) -> None:
    problem, kernel = tmp_path / "test_gather.py", tmp_path / "gather.py"
    problem.write_text(PROBLEM.replace('("cuda",)', '("cpu",)'))
    kernel.write_text(
        "def gather(x, index, table, factor):\n"
        "    with open('seen', 'a') as file:\n"
        "        print(*x.shape, x.untyped_storage().nbytes() == x.nbytes, x.storage_offset(), file=file)\n"
        "    return x * factor\n"
    )
    job = TargetJob("each", str(problem), digest(problem), "cpu", str(kernel), digest(kernel))
    with scratch() as folder:
        launch(job.command(sys.executable, folder), folder=folder, timeout_s=60, watch=Watch())
        answer = read_answer(folder)
        seen = (folder / "seen").read_text().splitlines()
    assert (answer["stage"], answer["shift"], "limits on" in answer["isolation"]) == ("done", 0, True)
    assert seen == ["4 8 True 0", "64 128 True 0", "16 128 True 0"]


def test_for_a_checker_a_c_function_is_bound_to_the_outputs_of_each_workload(tmp_path: Path) -> None:
    problem, kernel = c_files(tmp_path)
    two = '[Workload({"n": 9}, "float32"), Workload({"n": 4096}, "float32")]'
    problem.write_text(problem.read_text().replace('[Workload({"n": 4096}, "float32")]', two))
    ran, answer = target(problem, kernel, op="each", workloads=("9-fp32", "4096-fp32"))
    assert (ran.returncode, answer.get("error"), answer["stage"]) == (0, None, "done")


def test_a_kernel_that_is_called_through_an_adapter_has_no_arguments_of_its_own(files: tuple[Path, Path]) -> None:
    files[0].write_text(PROBLEM.replace('bound="memory",', 'bound="memory",\n    adapter="kernelbench",'))
    ran, answer = target(*files, op="arguments", candidate="", candidate_sha256="")
    assert ran.returncode == 1
    assert "a kernel of the format kernelbench is called through an adapter" in answer["error"]


def test_the_environment_holds_no_secret_and_every_cache_lies_in_the_folder(tmp_path: Path) -> None:
    seen = environment(tmp_path)
    assert set(seen) & {"KOPT_PYTHON", "PYTHONPATH", "GITHUB_TOKEN"} == set()
    assert all(seen[name].startswith(str(tmp_path)) for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR"))


def test_a_program_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    ran = launch([str(tmp_path / "nothing")], folder=tmp_path, timeout_s=5, watch=Watch())
    assert ran.failure == "missing"


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"stage"'])
def test_an_answer_that_is_none_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "answer.json").write_text(text)
    assert read_answer(tmp_path) == {}


# --- static profile from a problem file ------------------------------------------------------------------------


def test_a_problem_that_does_not_load_is_refused_with_its_reason(tmp_path: Path) -> None:
    problem, kernel = tmp_path / "test_bad.py", tmp_path / "k.py"
    problem.write_text("PROBLEM = None\n")
    kernel.write_text(KERNEL)
    with pytest.raises(InputRefused, match="declares no PROBLEM"):
        static_profile_json(kernel, problem, "sm_90", sys.executable)
    with pytest.raises(InputRefused, match="cannot be read"):
        static_profile_json(kernel, tmp_path / "nowhere.py", "sm_90", sys.executable)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_a_shipped_kernel_is_compiled_for_its_problems_first_gpu_workload() -> None:
    folder = Path(__file__).parents[1] / "skills" / "kernels" / "softmax"
    (found,) = static_profile_json(
        folder / "triton_template.py", folder / "test_softmax.py", "sm_90", sys.executable, workload="4096x4096-fp32"
    )
    assert (found.grid, found.target, found.spills) == ([4096, 1, 1], "sm_90", 0)


def test_an_interpreter_without_torch_is_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ToolUnavailable, match="does not run torch"):
        static_profile_json(files[1], files[0], "sm_90", str(tmp_path / "python"))


def test_authored_kernels_are_found_in_both_languages(tmp_path: Path) -> None:
    kernel, cuda = tmp_path / "k.py", tmp_path / "k.cu"
    kernel.write_text(
        "@triton.autotune(\n    configs=[triton.Config({})],\n    key=[],\n)\n@triton.heuristics({})\n@triton.jit\n"
        "def first(x): ...\n\n@jit(do_not_specialize=['n'])\ndef second(x): ...\n\ndef host(x): ...\n"
    )
    cuda.write_text(
        "template <int N>\n__global__ void __launch_bounds__(256, 2) third(float *x) {}\n"
        'extern "C" __global__ void fourth(int n) {}\n__device__ float helper(float x) { return x; }\n'
    )
    assert authored_kernels(kernel) == {"first", "second"}
    assert authored_kernels(cuda) == {"third", "fourth"}


# --- the ladder on this CPU, nothing recorded ------------------------------------------------------------------


def c_files(tmp_path: Path) -> tuple[Path, Path]:
    problem, kernel = tmp_path / "test_scale.py", tmp_path / "scale.c"
    problem.write_text(C_PROBLEM)
    kernel.write_text(C_KERNEL)
    return problem, kernel


def test_a_c_kernel_gets_the_compilers_report_with_its_own_flags(tmp_path: Path) -> None:
    problem, kernel = c_files(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    evaluator = LocalEvaluator(sys.executable, tmp_path / "cache")
    ladder = Ladder(evaluator, python=sys.executable, cache=tmp_path / "cache", host=Host(root=empty, env={}))
    seen = ladder(
        device=EPYC,
        job=Job("benchmark", str(problem), digest(problem), str(kernel), digest(kernel), "cpu"),
        workload=WorkloadInfo("4096-fp32", "float32", True, 32768.0, 4096.0),
        timing=timing(10.0),
        depth="quick",
        artifacts=tmp_path / "profiles",
        watch=Watch(),
    )
    if "vectorization" in seen.facts:
        pytest.skip(seen.facts["vectorization"])
    assert seen.rung == "static"
    assert seen.facts["vectorized"] == "line 6"
    assert seen.facts["not_vectorized"].startswith(("line 8", "line 9"))
    assert {Path(path).name for path in seen.artifacts} == {"vectorization.txt", "metrics.json"}
    assert json.loads(read_text(Path(seen.artifacts[-1])))["rung"] == "static"


def test_an_outer_loop_is_not_called_scalar_for_its_inner_loops() -> None:
    report = (
        "kernel.c:3:1: missed: couldn't vectorize loop\n"
        "kernel.c:3:1: missed: not vectorized: loop nest containing two or more consecutive inner loops\n"
        "kernel.c:4:1: missed: couldn't vectorize loop\n"
        "kernel.c:4:9: missed: statement clobbers memory: f (x);\n"
        "kernel.c:5:1: optimized: loop vectorized using 16 byte vectors\n"
        "kernel.c:5:1: missed: couldn't vectorize loop\n"
        "/usr/include/math.h:9:1: missed: couldn't vectorize loop\n"
    )
    found = loops(report, "kernel.c")
    assert found == {
        "vectorized": "line 5",
        "not_vectorized": "line 4 (statement clobbers memory: f (x);)",
    }
