"""The tricks that need a GPU, through the real evaluator.

Also a script, for a machine without pytest: `python tests/gpu/test_gpu_cheats.py RESULTS.json [NAME ...]` prints a
table and writes what it found. A trick is caught if its status is one that its file expects and no false speed was
reported.
"""

import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import evaluating  # noqa: E402
from evaluating import Case, case, caught, run_all  # noqa: E402

from kopt_mcp.evaluator.records import Evaluation, Job  # noqa: E402

FALSE_SPEED = 1.01
"""The honest kernel beside most of these is the very same one, and from here on a gain is kept."""
HERE = Path(__file__).parent / "cheats"
PROBLEMS = {name: ROOT / "skills" / "kernels" / name / f"test_{name}.py" for name in ("softmax", "gemm")}
PROBLEMS |= {"scaled-add": HERE / "problems" / "scaled_add.py"}
CHECKED = ("5x2-fp32", "37x1021-fp32", "9x513-fp16", "4096x4096-fp32")
TIMED = ("4096x4096-fp32",)
HONEST = {
    "softmax": HERE / "controls" / "c1_one_row_a_program.py",
    "gemm": HERE / "controls" / "matmul.py",
    "scaled-add": HERE / "problems" / "scaled_add_honest.py",
}
SLOW = {"library": HERE / "t16_library_fallback.py"}
"""Incumbents beside which a trick may be faster in truth."""
CASES = [case(p) for p in sorted(HERE.glob("*.py"))]
CONTROLS = [case(p) for p in sorted((HERE / "controls").glob("*.py"))]


def job(trick: Case, kind: str, workloads: tuple[str, ...]) -> Job:
    problem = PROBLEMS[trick.problem]
    honest = SLOW[trick.incumbent] if trick.incumbent else HONEST[trick.problem]
    digests = [sha256(p.read_bytes()).hexdigest() for p in (problem, trick.path, honest)]
    beside = {"incumbent": str(honest), "incumbent_sha256": digests[2]} if kind == "benchmark" else {}
    return Job(
        kind,  # type: ignore[arg-type]
        str(problem),
        digests[0],
        str(trick.path),
        digests[1],
        "cuda:0",
        workloads,
        timeout_s=trick.timeout_s,
        **beside,
    )


def verdict(evaluator: Any, trick: Case) -> Evaluation:
    """Correctness, and then time beside an honest kernel where the trick is about time."""
    result: Evaluation = evaluator.evaluate(job(trick, "verify", trick.workloads or CHECKED))
    if result.status != "PASSED" or not trick.timed:
        return result
    timed: Evaluation = evaluator.evaluate(job(trick, "benchmark", trick.workloads or TIMED))
    return timed


class Evaluating:
    """The evaluator behind its client, or the harness itself where the client's packages are missing."""

    def __init__(self, folder: Path) -> None:
        try:
            from kopt_mcp.evaluator.client import LocalEvaluator
            from kopt_mcp.watch import Watch
        except ImportError:
            from kopt_mcp.evaluator.harness import Harness

            self._harness = Harness("cuda:0", folder)
            self.close = self._harness.close
            self.evaluate = self._in_process
            return
        local = LocalEvaluator(sys.executable, folder)
        self.close = local.close
        self.evaluate = lambda work: local.evaluate(work, Watch())

    def _in_process(self, work: Job) -> Evaluation:
        problem = self._harness.problem(work.problem, work.problem_sha256)
        return self._harness.evaluate(problem, work, lambda fraction, text: None)


def main(target: str, names: list[str]) -> int:
    """Run all, or those that are named; the number of wrong verdicts that are not known already."""
    import tempfile

    evaluating.FALSE_SPEED = FALSE_SPEED
    evaluator = Evaluating(Path(tempfile.mkdtemp(prefix="kopt-")))
    try:
        return run_all([*CONTROLS, *CASES], lambda trick: verdict(evaluator, trick), Path(target), names)
    finally:
        evaluator.close()


def sees_a_gpu() -> bool:
    """Asked of a process of its own: importing torch here would cost every collection a second."""
    command = [sys.executable, "-c", "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))

import pytest  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluating]:
    if not sees_a_gpu():
        pytest.skip("torch sees no CUDA device")
    evaluating = Evaluating(tmp_path_factory.mktemp("cache"))
    yield evaluating
    evaluating.close()


@pytest.mark.parametrize("trick", CASES, ids=lambda c: c.name)
def test_a_trick_gets_neither_a_false_pass_nor_a_false_speed(
    evaluator: Evaluating, trick: Case, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "FALSE_SPEED", FALSE_SPEED)
    if trick.open:
        request.applymarker(pytest.mark.xfail(reason=trick.open, strict=False))
    result = verdict(evaluator, trick)
    assert caught(trick, result), result
    assert verdict(evaluator, CONTROLS[0]).status == "PASSED"


@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: c.name)
def test_an_honest_kernel_passes(evaluator: Evaluating, control: Case) -> None:
    result = verdict(evaluator, control)
    assert result.status == "PASSED", result.detail
