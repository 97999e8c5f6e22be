"""What only a real NVIDIA device can show: its state while calls are timed, a busy one, and compute-sanitizer at work.

Also a script, for a machine without pytest: `python tests/gpu/test_gpu_surroundings.py` runs all and prints what it
saw; the exit status is the number of failures.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from kopt_mcp.evaluator.client import LocalEvaluator  # noqa: E402
from kopt_mcp.evaluator.records import Evaluation, Job  # noqa: E402
from kopt_mcp.models import SanitizerRun  # noqa: E402
from kopt_mcp.platforms import detect_all  # noqa: E402
from kopt_mcp.profiling.sanitizer import Sanitizer  # noqa: E402
from kopt_mcp.watch import Watch  # noqa: E402

TRITON = ROOT / "skills" / "kernels" / "softmax"
CUDA = ROOT / "examples" / "cuda_softmax"
HOG = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
begin, told = time.monotonic(), False
while True:
    for _ in range(50):
        torch.mm(a, a)
    torch.cuda.synchronize()
    if not told and time.monotonic() - begin > 2:
        told = True
        print("busy", flush=True)
"""
"""Speaks up after two seconds, when the driver's own count of who used the device has seen it."""


def job(kernel: Path, problem: Path, kind: str = "verify", workloads: tuple[str, ...] | None = None) -> Job:
    digests = [sha256(p.read_bytes()).hexdigest() for p in (problem, kernel)]
    return Job(kind, str(problem), digests[0], str(kernel), digests[1], "cuda:0", workloads)  # type: ignore[arg-type]


def timed(evaluator: LocalEvaluator) -> Evaluation:
    work = job(TRITON / "triton_template.py", TRITON / "test_softmax.py", "benchmark", ("4096x4096-fp32",))
    return evaluator.evaluate(work, Watch())


@contextmanager
def busy_device() -> Iterator[int]:
    """Somebody else's endless matrix products; the process number."""
    hog = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE, text=True)
    assert hog.stdout is not None
    try:
        assert hog.stdout.readline() == "busy\n"
        yield hog.pid
    finally:
        hog.kill()
        hog.wait()
        hog.stdout.close()


def sanitized(evaluator: LocalEvaluator, kernel: Path, problem: Path) -> tuple[SanitizerRun, ...]:
    work = job(kernel, problem)
    infos = evaluator.describe(problem, work.problem_sha256, "cuda:0").workloads
    return Sanitizer(lambda: sys.executable)(device=detect_all()[0], job=work, workloads=infos, watch=Watch())


def edited(folder: Path, old: str, new: str) -> Path:
    """The CUDA example with one place changed."""
    text = (CUDA / "softmax.cu").read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    path = folder / "softmax.cu"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


# One function each; pytest and the script call the same


def check_state(evaluator: LocalEvaluator, folder: Path) -> None:
    """The clocks of an H200 and its like are there, and a quiet device is not called busy."""
    result = timed(evaluator)
    state = result.device_state
    print(json.dumps(dataclasses.asdict(state) if state else None), result.notes, result.binary_sha256)
    assert result.status == "PASSED", result.detail
    assert state is not None
    assert [r.when for r in state.readings][:: len(state.readings) - 1] == ["before", "after"]
    assert all(r.sm_mhz for r in state.readings)
    assert state.processes
    assert result.binary_sha256


def check_busy(evaluator: LocalEvaluator, folder: Path) -> None:
    """Beside somebody else's work there is no number; a moment after it there is one again."""
    with busy_device() as pid:
        result = timed(evaluator)
        print(pid, result.status, result.detail)
        assert result.status == "DEVICE_BUSY"
    assert timed(evaluator).status == "PASSED"


def check_planted_write(evaluator: LocalEvaluator, folder: Path) -> None:
    """A write behind the output passes verification, where there is room, and not the sanitizer."""
    kernel = HERE / "kernels" / "softmax_writes_behind.py"
    line = next(n for n, text in enumerate(kernel.read_text().splitlines(), 1) if "PLANTED" in text)
    verified = evaluator.evaluate(job(kernel, TRITON / "test_softmax.py", workloads=("5x2-fp32",)), Watch())
    (run,) = sanitized(evaluator, kernel, TRITON / "test_softmax.py")
    print(verified.status, run)
    assert verified.status == "PASSED", verified.detail
    assert (run.status, run.place) == ("failed", f"kernel.py:{line}")
    assert "write" in run.finding


def check_planted_write_in_cuda(evaluator: LocalEvaluator, folder: Path) -> None:
    """The same in CUDA C++, with the line of the candidate's own file."""
    old = "    const float *x = in + blockIdx.x * cols;\n"
    kernel = edited(folder, old, "    if (threadIdx.x == 0) out[gridDim.x * cols] = 0.0f;\n" + old)
    line = kernel.read_text().splitlines().index("    if (threadIdx.x == 0) out[gridDim.x * cols] = 0.0f;") + 1
    (run,) = sanitized(evaluator, kernel, CUDA / "test_softmax.py")
    print(run)
    assert (run.status, run.place) == ("failed", f"kernel.cu:{line}")


def check_planted_race(evaluator: LocalEvaluator, folder: Path) -> None:
    """A barrier left out of a reduction in shared memory."""
    kernel = edited(folder, "        __syncthreads();\n    }\n", "    }\n")
    runs = sanitized(evaluator, kernel, CUDA / "test_softmax.py")
    print(runs)
    assert [(run.tool, run.status) for run in runs] == [("memcheck", "passed"), ("racecheck", "failed")]


def check_honest(evaluator: LocalEvaluator, folder: Path) -> None:
    """Honest kernels pass."""
    for kernel, problem in (
        (TRITON / "triton_template.py", TRITON / "test_softmax.py"),
        (CUDA / "softmax.cu", CUDA / "test_softmax.py"),
    ):
        begin = time.perf_counter()
        runs = sanitized(evaluator, kernel, problem)
        print(kernel.name, runs, f"{time.perf_counter() - begin:.1f} s")
        assert [run.status for run in runs] == ["passed"] * len(runs)


def check_program(evaluator: LocalEvaluator, folder: Path) -> None:
    """A problem file is a program, whose kernel gets the GPU that the program has asked for."""
    command = [sys.executable, str(TRITON / "test_softmax.py"), "--json", "--correctness"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    print(done.stdout, done.stderr)
    report = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, report
    assert (report["correctness"], report["status"]) == (True, "pass")
    assert "NVIDIA" in report["gpu"]


CHECKS: tuple[Callable[[LocalEvaluator, Path], None], ...] = (
    check_state,
    check_busy,
    check_planted_write,
    check_planted_write_in_cuda,
    check_planted_race,
    check_honest,
    check_program,
)


def main() -> int:
    """Run all; the number of failures."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="kopt-") as name:
        evaluator = LocalEvaluator(sys.executable, Path(name))
        for check in CHECKS:
            folder = Path(name) / check.__name__
            folder.mkdir()
            begin = time.perf_counter()
            try:
                check(evaluator, folder)
                told = "ok"
            except Exception:
                failures += 1
                told = f"FAILED\n{traceback.format_exc()[-1500:]}"
            print(f"{check.__name__}: {time.perf_counter() - begin:.1f} s, {told}", flush=True)
        evaluator.close()
    return failures


if __name__ == "__main__":
    raise SystemExit(main())

import pytest  # noqa: E402
from test_gpu_cheats import sees_a_gpu  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEvaluator]:
    if not sees_a_gpu():
        pytest.skip("torch sees no CUDA device")
    local = LocalEvaluator(sys.executable, tmp_path_factory.mktemp("cache"))
    yield local
    local.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__doc__.split("\n")[0])
def test_on_a_real_device(evaluator: Any, check: Callable[[Any, Path], None], tmp_path: Path) -> None:
    check(evaluator, tmp_path)
