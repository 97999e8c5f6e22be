"""The script for a GPU, as far as it goes without one: recorded reports go in, a verdict and a page come out."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes import FakeEvaluator
from profiling import H200, Machine, RecordedLaunch, compiled

from kopt_mcp.evaluator.harness import load_problem
from kopt_mcp.evaluator.records import Evaluation, Job, KernelTime, ProblemInfo, Timing, WorkloadInfo, WorkloadResult
from kopt_mcp.models import Device, Peak
from kopt_mcp.platforms.host import Host
from kopt_mcp.watch import Watch

SCRIPT = Path(__file__).parent / "gpu" / "diagnosis.py"
RECORDED_BYTES = 2.0 * 32768 * 4096 * 2
RECORDED_US = 133.0


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_diagnosis", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


script = load()


def contents(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return sorted(tar.getnames())


class Recorded(FakeEvaluator):
    """Finds every kernel right, and as fast as the recorded softmax was."""

    def describe(self, problem: Path, sha256: str, device: str) -> ProblemInfo:
        case = script.CASES[0]
        return ProblemInfo(
            "softmax", "softmax", "memory", (WorkloadInfo(case.workload, "float32", True, RECORDED_BYTES, 7e8),)
        )

    def evaluate(self, job: Job, watch: Watch) -> Evaluation:
        timing = Timing(RECORDED_US, 130.0, 140.0, 100, "cuda_events", "l2_cold")
        name = (job.workloads or ("",))[0]
        return Evaluation("PASSED", "", (WorkloadResult(name, "PASSED", timing=timing),))

    def kernel_times(self, job: Job, workload: str, watch: Watch) -> list[KernelTime]:
        return [KernelTime("softmax_kernel", 1, RECORDED_US)]


def measured(gbps: float = 4275.0) -> Device:
    def peak(value: float, method: Any) -> Peak:
        return Peak(value=value, method=method, source="test", confidence="high")

    return H200.model_copy(
        update={
            "bandwidth_gbps": peak(4800.0, "table"),
            "measured_gbps": peak(gbps, "measured"),
            "tflops": {"bf16": peak(989.0, "table")},
            "measured_tflops": {"bf16": peak(750.0, "measured")},
        }
    )


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    machine = Machine(tmp_path / "machine", evaluator=Recorded(), static=lambda kernel, **options: [compiled()])
    machine.install_ncu("counts")
    (tmp_path / "empty").mkdir()
    blind = Machine(tmp_path / "blind", evaluator=machine.evaluator)
    return script.Bench(
        device=measured(),
        evaluator=machine.evaluator,
        ladder=machine.ladder(),
        blind=blind.ladder(RecordedLaunch(), Host(root=tmp_path / "empty", env={})),
        artifacts=tmp_path / "artifacts",
        clock=itertools.count().__next__,
    )


def test_the_recorded_softmax_is_found_at_the_roof_by_ncu(bench: Any) -> None:
    results, case = script.Results(), script.CASES[0]
    profile, found, row = script.examine(case, bench)
    script.judge(case, row, results)
    assert (profile.rung, found.bound, found.findings) == ("ncu", "at_roof", [])
    assert [check.passed for check in results.checks] == [True]


def test_where_no_profiler_is_found_the_script_expects_a_lower_rung(bench: Any) -> None:
    case = next(one for one in script.CASES if not one.counters)
    _, _, row = script.examine(case, bench)
    assert (row["rung"], row["case"]) == ("torch_profiler", "softmax_good (no ncu)")


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"bound": "compute"}, False),
        ({"rung": "timing"}, False),
        ({"findings": []}, False),
        ({"findings": ["uncoalesced", "spills"]}, False),
        ({"evaluation": "INCORRECT_NUMERICAL: off by 3"}, False),
    ],
)
def test_a_case_passes_only_with_class_rung_cause_and_a_right_kernel(changes: dict[str, Any], passed: bool) -> None:
    case, results = script.CASES[1], script.Results()
    row = {"evaluation": "PASSED", "bound": "memory", "rung": "ncu", "findings": ["uncoalesced"], **changes}
    script.judge(case, row, results)
    assert [check.passed for check in results.checks] == [passed]


@pytest.mark.parametrize(("seen", "passed"), [(5.4e8, True), (6.1e8, False), (None, False)])
def test_the_bytes_of_the_copy_are_held_against_the_truth(seen: float | None, passed: bool) -> None:
    results = script.Results()
    script.judge_numbers({"plain_copy": {"metrics": {"dram_bytes": seen}}}, results)
    assert [check.passed for check in results.checks] == [passed]


def test_a_ceiling_above_the_nominal_peak_fails() -> None:
    results = script.Results()
    script.judge_ceilings(measured(5000.0), results)
    assert [(check.name, check.passed) for check in results.checks] == [("ceiling copy", False), ("ceiling bf16", True)]


@pytest.mark.parametrize(("spills", "passed"), [(0, True), (7, False)])
def test_the_compiler_is_held_against_driver_and_counters(spills: int, passed: bool) -> None:
    results = script.Results()
    row = {"case": "k", "compiled": [compiled(registers=32, occupancy_pct=100.0).model_dump()]}
    driver = {"softmax_k": {"n_regs": 32, "n_spills": spills}}
    script.judge_static(row, driver, {"registers": 32.0, "occupancy_theoretical_pct": 100.0}, results)
    assert [check.passed for check in results.checks] == [passed]


def test_a_compiler_that_said_nothing_is_a_failed_check() -> None:
    results = script.Results()
    script.judge_static({"case": "k", "compiled": [], "facts": {"static": "no triton"}}, {}, {}, results)
    assert [(check.found, check.passed) for check in results.checks] == [("no triton", False)]


def test_what_breaks_in_one_part_is_written_down_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    results = script.Results()
    script.attempts(results, "a part", lambda: [].pop())
    assert results.failed == 1
    assert "IndexError" in results.errors[0]
    assert "1 failed" in script.table(results)


def test_the_page_names_card_versions_date_and_every_case(bench: Any) -> None:
    results = script.Results(about={"date": "2026-01-02", "versions": {"driver": "580.1"}}, device=H200.model_dump())
    _, _, row = script.examine(script.CASES[0], bench)
    results.cases.append(row)
    script.judge(script.CASES[0], row, results)
    text = script.page(results)
    assert "NVIDIA H200 (sm_90, 132 SMs). driver 580.1. Date: 2026-01-02." in text
    assert "| softmax_good | 16384x4096-fp32 | ncu | at_roof |" in text


def test_every_part_is_saved_as_soon_as_it_is_done(tmp_path: Path) -> None:
    results = script.Results(out=tmp_path)
    script.attempts(results, "a part", lambda: results.check("a", "b", "c", True))
    assert json.loads((tmp_path / "results.json").read_text())["checks"][0]["passed"] is True
    assert "| a | b | c | pass |" in (tmp_path / "README.md").read_text()


def test_binary_reports_are_left_out_of_an_archive_that_grows_too_large(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.ncu-rep").write_bytes(bytes(range(256)) * 64)
    (raw / "b.csv").write_text("x")
    script.pack(raw, tmp_path / "whole.tar.gz")
    script.pack(raw, tmp_path / "small.tar.gz", most_bytes=200)
    assert contents(tmp_path / "whole.tar.gz") == ["a.ncu-rep", "b.csv"]
    assert contents(tmp_path / "small.tar.gz") == ["b.csv"]


@pytest.mark.parametrize("case", script.CASES, ids=lambda case: case.name)
def test_every_case_names_a_kernel_and_a_workload_that_exist(case: Any) -> None:
    problem = script.KERNELS / f"{case.problem}_problem.py"
    declared = load_problem(problem.read_bytes(), str(problem))
    assert (script.KERNELS / f"{case.kernel}.py").exists()
    assert case.workload in [workload.name for workload in declared.workloads]
