"""The whole loop on a fake evaluator: what each tool does, and what `decide` makes of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import fakes
import pytest
from fakes import CPU, GPU, Project

from kopt_mcp.edit import Edit
from kopt_mcp.errors import (
    Cancelled,
    DeviceBusy,
    EvaluatorFailed,
    GuardRefused,
    InputRefused,
    JournalCorrupt,
    ProblemInvalid,
    ToolUnavailable,
    WorkspaceFailed,
)
from kopt_mcp.evaluator.records import Evaluation, Job, Mutant
from kopt_mcp.journal import Journal
from kopt_mcp.models import Profile
from kopt_mcp.results import StepResult
from kopt_mcp.watch import Watch


def events(project: Project, name: str) -> list[tuple[str, str]]:
    return [(e.tool, e.outcome) for e in Journal(project.root / "experiments" / name / "journal.jsonl").read()]


# baseline


def test_the_baseline_measures_the_kernel_against_itself_and_names_the_experiment(project: Project) -> None:
    result = project.baseline()
    assert (result.experiment, result.phase, result.next) == ("softmax-h200-1", "ready", ("profile", "diagnose"))
    assert (result.baseline, result.target, result.gap_pct) == (100.0, 500.0, 80.0)
    assert (result.noise_pct, result.least_gain_pct, result.roof) == (0.1, 1.0, 1000.0)
    assert [job.kind for job in project.evaluator.jobs] == ["verify", "benchmark"]
    assert project.evaluator.jobs[1].incumbent_sha256 == project.evaluator.jobs[1].candidate_sha256


def test_without_a_target_seventy_percent_of_the_roof_is_derived_and_said(project: Project) -> None:
    result = project.loop.baseline("softmax.py")
    assert (result.metric, result.target) == ("gbps", 700.0)
    assert result.target_source == "derived: 70% of peak, the measured roof"


@pytest.mark.parametrize(
    ("metric", "share", "target"), [("gbps", 0.5, 500.0), ("tflops", 0.5, 5.0), ("latency_us", 0.5, 200.0)]
)
def test_a_share_of_the_peak_becomes_a_target_in_every_metric(
    project: Project, metric: Any, share: float, target: float
) -> None:
    result = project.loop.baseline("softmax.py", target_metric=metric, target_pct_of_peak=share)
    assert (result.target, result.target_source) == (target, "50% of peak, the measured roof")


def test_a_second_baseline_is_a_second_experiment(project: Project) -> None:
    assert [project.baseline().experiment for _ in range(2)] == ["softmax-h200-1", "softmax-h200-2"]


def test_a_baseline_that_is_met_already_says_so(project: Project) -> None:
    result = project.baseline(target_value=50)
    assert result.gap_pct == 0
    assert result.notes[0].startswith("the baseline meets the target already")


@pytest.mark.parametrize(("metric", "target"), [("gbps", 1001.0), ("latency_us", 99.0)])
def test_a_target_that_the_device_cannot_reach_is_said_to_lie_beyond_the_roof(
    project: Project, metric: Any, target: float
) -> None:
    result = project.baseline(target_metric=metric, target_value=target)
    assert result.notes[0].startswith(f"the target {target:g} lies beyond the roof {result.roof:g}, which is what")
    assert project.baseline(target_metric=metric, target_value=result.roof).notes[0].startswith("softmax.py is in ")


def test_a_second_experiment_on_a_kernel_is_told_of_the_first_until_that_is_over(project: Project) -> None:
    first = project.baseline()
    assert first.notes == ()
    assert project.baseline().notes == (
        f"softmax.py is in {first.experiment} too, not over yet; once one changes the file, the others refuse; go on "
        "in one only (log shows each).",
    )
    for name in (first.experiment, "softmax-h200-2"):
        project.loop.decide(name, stop=True, reason="not wanted")
    assert project.baseline().notes == ()


def test_a_kernel_that_imports_its_project_is_told_that_it_is_tried_alone(project: Project) -> None:
    (project.root / "sizes.py").write_text("BLOCK = 64\n")
    project.kernel.write_text("from sizes import BLOCK\n" + fakes.kernel(VERIFY="COMPILE_ERROR"))
    with pytest.raises(InputRefused) as refusal:
        project.baseline()
    assert str(refusal.value) == (
        "softmax.py could not be loaded: the kernel says COMPILE_ERROR; it imports sizes.py, and a kernel is tried as "
        "one file, away from its project, whose other files could change behind a measurement; put what it needs into "
        "the file, or install those modules, then call baseline again."
    )


@pytest.mark.parametrize("gpu", ["auto", "cpu"])
def test_a_gpus_language_is_refused_where_there_is_only_a_cpu(project: Project, gpu: Any) -> None:
    (project.root / "softmax.cu").write_text("// SPEED\n")
    project.devices = [CPU]
    with pytest.raises(InputRefused, match=r"^softmax\.cu is written for a GPU, and Some CPU is none; nothing"):
        project.loop.baseline("softmax.cu", gpu=gpu)
    project.devices = [GPU, CPU]
    with pytest.raises(InputRefused, match="fails its own problem"):  # it got as far as being tried
        project.loop.baseline("softmax.cu")


def test_a_kernel_that_cannot_be_timed_here_is_told_how_it_can_be_checked(project: Project) -> None:
    def untimed(job: Job, watch: Watch) -> None:
        if job.kind == "benchmark":
            raise ToolUnavailable("this is a Triton kernel and there is no GPU.")

    project.evaluator.before = untimed
    with pytest.raises(ToolUnavailable) as refusal:
        project.baseline()
    assert str(refusal.value) == (
        "softmax.py is right, but this is a Triton kernel and there is no GPU. No experiment was begun. To check a "
        "change here: kopt-mcp evaluate softmax.py --problem test_softmax.py"
    )
    assert project.loop.log().experiments == ()


def test_a_noisy_machine_raises_the_bar_and_says_so(project: Project) -> None:
    project.evaluator.ratio_of_itself = 1 / 1.06
    result = project.baseline()
    assert result.least_gain_pct == 12.0
    assert "gains under 12 % cannot be told from chance" in result.notes[0]
    assert project.iterate(result.experiment, fakes.kernel(1.08)).status == "NEUTRAL"


def test_a_kernel_that_fails_its_own_problem_is_refused_with_the_evaluations_words(project: Project) -> None:
    project.kernel.write_text(fakes.kernel(VERIFY="INCORRECT_NUMERICAL"))
    with pytest.raises(InputRefused) as refusal:
        project.baseline()
    assert str(refusal.value) == (
        "softmax.py fails its own problem (INCORRECT_NUMERICAL): the kernel says INCORRECT_NUMERICAL; there is nothing "
        "right to start from; make the kernel right first, then call baseline again; if it only adds up a long sum in "
        "another order, have the problem's reduction (its length) and scale (root sum of squares of its terms) say so; "
        "where both do, raise the factor of its tolerance."
    )


def test_a_problem_that_accepts_a_wrong_kernel_is_refused_unless_that_is_accepted_in_writing(project: Project) -> None:
    project.evaluator.mutants = [Mutant(name="dropped-tile", caught=False, why="only one shape is tried")]
    with pytest.raises(
        ProblemInvalid, match=r"accepts a wrong kernel \(dropped-tile\): only one shape is tried; no result"
    ):
        project.baseline()
    (project.root / "kopt.yaml").write_text("accept_weaknesses: [dropped-tile]\n")
    assert project.baseline().weaknesses == ("dropped-tile",)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"gpu": "amd"},
            "gpu is 'amd', but this machine shows NVIDIA H200 (nvidia), Some CPU (cpu); set gpu to one of",
        ),
        ({"workloads": ["1x1"]}, "workload '1x1' is not one of 'softmax'; it has 4096x4096-fp32, 127x1000-fp32"),
        ({"workloads": ["127x1000-fp32"]}, "no workload is timed; nothing can be optimised"),
        ({"test_path": "softmax.py"}, "test_path 'softmax.py' is not a test"),
        (
            {"test_path": "../test.py"},
            "test_path '../test.py' lies outside the project; only files inside it are touched;",
        ),
    ],
)
def test_what_contradicts_the_machine_or_the_problem_is_refused(
    project: Project, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(InputRefused) as refusal:
        project.baseline(**arguments)
    assert str(refusal.value).startswith(text)


def test_nothing_is_left_of_a_baseline_that_was_refused(project: Project) -> None:
    project.evaluator.mutants = [Mutant(name="zeros", caught=False, why="x")]
    with pytest.raises(ProblemInvalid):
        project.baseline()
    assert list((project.root / "experiments").iterdir()) == []


def test_a_cpu_kernel_runs_on_the_cpu_and_its_experiment_is_named_so(project: Project) -> None:
    assert project.baseline(gpu="cpu").experiment == "softmax-cpu-1"
    assert {job.device for job in project.evaluator.jobs} == {"cpu"}


def test_a_problem_for_the_cpu_only_is_taken_there_and_the_result_says_so(project: Project) -> None:
    class CpuOnly(fakes.FakeEvaluator):
        def describe(self, problem: Any, sha256: str, device: str) -> Any:
            if device != "cpu":
                raise ProblemInvalid("no workload for cuda")
            return self.problem

    project.evaluator = CpuOnly()
    project.loop = project.reopened()
    result = project.baseline()
    assert result.device == "Some CPU"
    assert result.notes == ("the problem has workloads for the CPU only; running there, not on NVIDIA H200.",)


def test_a_problem_that_fits_no_device_is_refused_with_the_first_devices_words(project: Project) -> None:
    class Fitless(fakes.FakeEvaluator):
        def describe(self, problem: Any, sha256: str, device: str) -> Any:
            raise ProblemInvalid(f"no workload for {device}")

    project.evaluator = Fitless()
    project.loop = project.reopened()
    with pytest.raises(ProblemInvalid, match="no workload for cuda:0"):
        project.baseline()


def test_a_kernel_in_c_runs_on_the_cpu_without_being_told(project: Project) -> None:
    project.kernel.rename(project.root / "softmax.c")
    result = project.loop.baseline("softmax.c", target_metric="gbps", target_value=500)
    assert (result.device, result.experiment) == ("Some CPU", "softmax-cpu-1")


def test_detect_names_the_gpu_first(project: Project) -> None:
    project.devices.reverse()
    assert [d.platform for d in project.loop.detect_gpu().devices] == ["nvidia", "cpu"]


# profile, diagnose, apply_patch


def test_without_a_profiler_the_profile_is_the_last_timing(project: Project) -> None:
    name = project.baseline().experiment
    result = project.loop.profile(name)
    assert (result.rung, result.workload, result.metrics) == ("timing", "4096x4096-fp32", {"duration_us": 1000.0})


def test_an_injected_profiler_is_asked_for_the_version_on_disk(project: Project) -> None:
    asked: list[dict[str, Any]] = []

    def profiler(**request: Any) -> Profile:
        asked.append(request)
        return Profile(rung="ncu", why="", workload=request["workload"].name, kernels=[], metrics={"dram_pct": 40.0})

    project.loop = project.reopened(profile=profiler)
    name = project.baseline().experiment
    assert project.loop.profile(name, depth="full").metrics == {"dram_pct": 40.0}
    assert asked[0]["depth"] == "full"
    assert asked[0]["timing"].latency_us == 1000.0
    assert asked[0]["device"].measured_gbps.value == 1000.0


@pytest.mark.parametrize(("workload", "depth"), [("127x1000-fp32", "quick"), (None, "deep")])
def test_an_unknown_workload_or_depth_is_refused(project: Project, workload: str | None, depth: str) -> None:
    name = project.baseline().experiment
    with pytest.raises(InputRefused, match=r"choose of them|expected one of"):
        project.loop.profile(name, workload, depth)
    assert project.loop.log(name).phase == "ready"


def test_the_real_diagnosis_takes_what_the_loop_gives_it(project: Project) -> None:
    from kopt_mcp.diagnosis import diagnose

    project.loop = project.reopened(diagnose=diagnose)
    name = project.baseline().experiment
    result = project.loop.diagnose(name)
    assert result.bound
    assert result.tiers


@pytest.mark.parametrize(
    "change",
    [
        {"edits": [Edit(search="SPEED = 1.0", replace="SPEED = 1.5")]},
        {"diff": "--- a/softmax.py\n+++ b/softmax.py\n@@ -9 +9 @@\n-SPEED = 1.0\n+SPEED = 1.5\n"},
        {"content": fakes.kernel(1.5)},
        {"working_copy": True},
    ],
)
def test_a_change_may_come_in_four_ways(project: Project, change: dict[str, Any]) -> None:
    name = project.diagnosed()
    if "working_copy" in change:
        project.kernel.write_text(fakes.kernel(1.5))
    result = project.loop.apply_patch(name, 2, "it is faster", **change)
    assert project.text == fakes.kernel(1.5)
    assert (result.iteration, result.iterations_left, result.added, result.removed) == (1, 4, 1, 1)
    assert (project.root / result.snapshot).read_text() == fakes.kernel(1.5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "a change comes as exactly one of edits, diff, content, working_copy; none of them is given; give one."),
        (
            {"content": "x", "diff": "y"},
            "a change comes as exactly one of edits, diff, content, working_copy; diff and co",
        ),
        ({"content": "x = (\n"}, "softmax.py line 1 does not parse: 'x = (': '(' was never closed; nothing changed."),
        ({"content": "x = '\0'"}, "softmax.py is binary"),
        ({"content": "\n"}, "the patch leaves softmax.py empty; nothing changed; send the kernel as it is to be."),
        ({"content": "x = '\ud800'"}, "the change holds a character that is no text"),
        ({"content": "#" * (3 << 20)}, "the change has 3145728 characters; at most 2097152 are read; send less."),
        ({"content": "#" * (1 << 20) + "\n"}, "softmax.py has more than the 1048576 bytes that are accepted"),
        ({"content": "x", "tier": 6}, "tier is 6; expected 1 to 5"),
        ({"content": "x", "hypothesis": " \n"}, "hypothesis is empty"),
        ({"content": "x", "hypothesis": "y" * 301}, "hypothesis is 301 characters long"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_nothing_is_touched(
    project: Project, change: dict[str, Any], text: str
) -> None:
    name = project.diagnosed()
    before = sorted(project.root.rglob("*.py"))
    with pytest.raises(InputRefused) as refusal:
        project.loop.apply_patch(name, **{"tier": 1, "hypothesis": "it is faster", **change})
    assert str(refusal.value).startswith(text)
    assert project.text == fakes.kernel()
    assert sorted(project.root.rglob("*.py")) == before
    assert events(project, name)[-1] == ("apply_patch", "refused")


def test_line_ends_of_the_users_file_survive_a_patch(project: Project) -> None:
    project.kernel.write_bytes(b"\xef\xbb\xbf" + fakes.kernel().replace("\n", "\r\n").encode())
    name = project.diagnosed()
    project.loop.apply_patch(name, 1, "it is faster", edits=[Edit(search="SPEED = 1.0\n", replace="SPEED = 1.5\n")])
    assert project.kernel.read_bytes() == b"\xef\xbb\xbf" + fakes.kernel(1.5).replace("\n", "\r\n").encode()
    assert project.loop.verify(name).correct


# verify, benchmark


def test_a_wrong_candidate_is_taken_back_at_once(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5, VERIFY="INCORRECT_NUMERICAL"))
    result = project.loop.verify(name)
    assert (result.correct, result.reverted, result.phase, result.next) == (False, True, "failed", ("decide",))
    assert result.workloads[0].error_ratio == 7.0
    assert result.workloads[0].detail == "off by 3", "the answer's own detail is another one"
    assert project.text == fakes.kernel()


@pytest.mark.parametrize("status", ["CHEATED", "SUSPECT", "RUNTIME_ERROR", "TIMEOUT"])
def test_a_candidate_that_fails_while_it_is_timed_is_taken_back_too(project: Project, status: str) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(9.0, BENCHMARK=status))
    project.loop.verify(name)
    result = project.loop.benchmark(name)
    assert (result.status, result.reverted, result.phase, result.value) == (status, True, "failed", None)
    assert project.text == fakes.kernel()
    assert project.loop.decide(name).status == "FAILED"
    assert "| FAIL (" + status + ") | - | - | FAILED, reverted |" in project.loop.log(name).table


def test_a_time_below_the_physical_floor_is_suspect_whatever_the_evaluator_says(project: Project) -> None:
    big = dataclasses.replace(fakes.WORKLOADS[0], bytes=1e9)
    project.evaluator.problem = dataclasses.replace(fakes.PROBLEM, workloads=(big,))
    name = project.diagnosed()
    project.patch(name, fakes.kernel(2.0))  # 500 us for what takes 1000 at the measured bandwidth
    project.loop.verify(name)
    result = project.loop.benchmark(name)
    assert result.status == "SUSPECT"
    assert "less than its 1e+09 bytes take" in result.detail


def test_a_time_of_zero_is_suspect_and_no_failure_of_ours(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(float("inf")).replace("inf", "1e999"))
    project.loop.verify(name)
    result = project.loop.benchmark(name)
    assert (result.status, result.reverted, result.workloads[0].value) == ("SUSPECT", True, None)


def test_a_pass_that_left_a_workload_out_is_no_pass(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    project.evaluator.spoil = lambda e: dataclasses.replace(e, workloads=e.workloads[:1])
    result = project.loop.verify(name)
    assert (result.status, result.correct) == ("INCONCLUSIVE", False)
    assert result.detail == "workload '127x1000-fp32' was not checked"


def test_a_benchmark_without_a_time_is_inconclusive_and_gains_nothing(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    project.loop.verify(name)
    untimed = [
        dataclasses.replace(r, timing=None) for r in project.evaluator.evaluate(job_of(project), Watch()).workloads
    ]
    project.evaluator.spoil = lambda e: dataclasses.replace(e, workloads=tuple(untimed))
    assert project.loop.benchmark(name).verdict == "unusable"
    result = project.loop.decide(name)
    assert (result.status, result.reverted, result.value) == ("NEUTRAL", True, None)


def test_a_time_that_cannot_be_told_from_an_empty_calls_meets_no_target(project: Project) -> None:
    tiny = tuple(dataclasses.replace(w, bytes=1e3) for w in fakes.WORKLOADS)
    project.evaluator.problem = dataclasses.replace(fakes.PROBLEM, workloads=tiny)
    name = project.diagnosed(target_metric="latency_us", target_value=1)
    project.patch(name, fakes.kernel(fakes.START_US / 0.05))
    project.loop.verify(name)
    seen = project.loop.benchmark(name)
    assert (seen.verdict, seen.value) == ("unusable", None)
    assert "takes less than can be told from an empty one's time" in seen.reason
    assert (result := project.loop.decide(name, "as fast as can be")).status != "TARGET_MET"
    assert not result.ended
    project.kernel.write_text(fakes.kernel(fakes.START_US / 0.04))
    with pytest.raises(InputRefused, match="could not be timed"):
        project.baseline(target_metric="latency_us", target_value=1)


def job_of(project: Project) -> Job:
    return project.evaluator.jobs[-1]


@pytest.mark.parametrize("status", ["DEVICE_BUSY", "DEVICE_UNHEALTHY"])
def test_a_device_that_is_not_usable_changes_nothing(project: Project, status: str) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    project.evaluator.spoil = lambda e: Evaluation(status, "somebody else's job runs")  # type: ignore[arg-type]
    with pytest.raises(DeviceBusy, match=rf"NVIDIA H200 is not usable \({status}\): somebody else's job runs"):
        project.loop.verify(name)
    assert project.loop.log(name).phase == "patched"
    assert events(project, name)[-1] == ("verify", "failed")
    project.evaluator.spoil = lambda e: e
    assert project.loop.verify(name).correct


@pytest.mark.parametrize("error", [EvaluatorFailed, ToolUnavailable, ProblemInvalid, Cancelled])
@pytest.mark.parametrize("tool", ["verify", "benchmark", "decide"])
def test_whatever_breaks_the_experiment_is_where_it_was(project: Project, tool: str, error: type[Exception]) -> None:
    name = project.diagnosed(target_value=140)
    project.patch(name, fakes.kernel(1.5))
    for step in ("verify", "benchmark", "decide"):
        if step == tool:
            break
        getattr(project.loop, step)(name)
    phase = project.loop.log(name).phase

    def broken(job: Job, watch: Watch) -> None:
        raise error("it broke")

    project.evaluator.before = broken
    with pytest.raises(error, match="it broke"):
        getattr(project.loop, tool)(name)
    assert (project.loop.log(name).phase, project.text) == (phase, fakes.kernel(1.5))
    project.evaluator.before = lambda job, watch: None
    getattr(project.loop, tool)(name)
    assert project.loop.log(name).phase != phase


def test_a_call_that_is_cancelled_while_it_runs_leaves_the_experiment_where_it_was(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5, VERIFY="INCORRECT_NUMERICAL"))
    project.evaluator.before = lambda job, watch: watch.cancel()
    with pytest.raises(Cancelled):
        project.loop.verify(name)
    assert (project.loop.log(name).phase, project.text) == ("patched", fakes.kernel(1.5, VERIFY="INCORRECT_NUMERICAL"))


def test_the_job_names_the_snapshot_the_incumbent_and_the_noise(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    project.loop.verify(name)
    project.loop.benchmark(name)
    job = project.evaluator.jobs[-1]
    assert job.candidate.startswith(str(project.root / "experiments" / name / "candidates"))
    assert job.incumbent_sha256 == project.evaluator.jobs[0].candidate_sha256
    assert job.floor == pytest.approx(0.001)


# decide


def test_a_gain_beyond_doubt_is_the_new_best(project: Project) -> None:
    name = project.baseline().experiment
    result = project.iterate(name, fakes.kernel(1.05))
    assert (result.status, result.best, result.best_iteration, result.reverted) == ("IMPROVED", 105.0, 1, False)
    assert (result.phase, result.next, result.gain_pct) == ("ready", ("profile", "diagnose"), 5.0)


@pytest.mark.parametrize(("speed", "status"), [(1.009, "NEUTRAL"), (0.995, "NEUTRAL"), (0.9, "REGRESSED")])
def test_anything_less_goes_back_to_the_best(project: Project, speed: float, status: str) -> None:
    name = project.baseline().experiment
    result = project.iterate(name, fakes.kernel(speed))
    assert (result.status, result.reverted, result.phase) == (status, True, "diagnosed")
    assert (project.text, result.best) == (fakes.kernel(), 100.0)


def test_a_revert_goes_to_the_best_and_not_to_the_one_before(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(1.5))
    project.iterate(name, fakes.kernel(1.2))
    assert project.iterate(name, fakes.kernel(1.3)).status == "REGRESSED"  # above the one before, below the best
    assert project.text == fakes.kernel(1.5)


def test_the_target_beats_the_iteration_limit(project: Project) -> None:
    name = project.baseline(max_iterations=1).experiment
    result = project.iterate(name, fakes.kernel(6.0))
    assert (result.status, result.ended, result.confirmed) == ("TARGET_MET", "TARGET_MET", True)
    assert result.summary == "Final: 600 GBps (60.0% of peak), 1 iteration, target met."
    assert project.evaluator.jobs[-1].kind == "confirm"


def test_a_latency_target_is_met_from_above(project: Project) -> None:
    name = project.baseline(target_metric="latency_us", target_value=400).experiment
    assert project.iterate(name, fakes.kernel(2.0)).status == "IMPROVED"
    result = project.iterate(name, fakes.kernel(2.6))
    assert (result.status, result.best) == ("TARGET_MET", 384.62)


def test_a_number_above_the_target_that_is_within_noise_of_the_best_is_no_win(project: Project) -> None:
    name = project.baseline(target_value=100.5).experiment
    result = project.iterate(name, fakes.kernel(1.009))
    assert (result.status, result.ended, project.text) == ("NEUTRAL", None, fakes.kernel())


def test_at_the_limit_the_best_is_on_disk_and_confirmed(project: Project) -> None:
    name = project.baseline(max_iterations=2).experiment
    project.iterate(name, fakes.kernel(1.5))
    result = project.iterate(name, fakes.kernel(0.5))
    assert (result.status, result.ended, result.confirmed, result.best) == ("REGRESSED", "MAX_ITERATIONS", True, 150.0)
    assert project.text == fakes.kernel(1.5)
    assert result.summary == "Final: 150 GBps (15.0% of peak), 2 iterations, target not met (MAX_ITERATIONS)."


def test_when_every_idea_has_failed_the_experiment_ends(project: Project) -> None:
    name = project.baseline().experiment
    for tier in (1, 2):
        result = project.iterate(name, fakes.kernel(0.5, N=tier), tier=tier, idea=f"idea-{tier}")
        assert result.ended is None
    assert project.loop.log(name).ideas == ("3/idea-3: try 3",)
    assert project.iterate(name, fakes.kernel(0.5, N=3), tier=3, idea="idea-3").ended == "TIERS_EXHAUSTED"


def test_one_failed_idea_does_not_burn_its_tier(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(0.5), tier=1, idea="another-idea")
    assert len(project.loop.log(name).ideas) == 3


def test_a_tried_idea_is_not_offered_again(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(0.5), tier=1, idea="idea-1")
    project.iterate(name, fakes.kernel(1.5))
    assert [idea.id for idea in project.loop.diagnose(name).ideas] == ["idea-2", "idea-3"]


def test_a_step_kept_in_writing_is_what_the_next_change_builds_on(project: Project) -> None:
    name = project.baseline().experiment
    result = project.iterate(name, fakes.kernel(0.9), keep_reason="the layout that fusion needs")
    assert (result.status, result.reverted, result.phase, result.best) == ("KEPT", False, "ready", 100.0)
    assert "kept until iteration 3: the layout that fusion needs" in result.reason
    result = project.iterate(name, fakes.kernel(1.4))
    assert (result.status, result.best_iteration) == ("IMPROVED", 2)


def test_a_failure_within_the_trial_goes_back_to_the_kept_step(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(0.9), keep_reason="it enables more")
    project.iterate(name, fakes.kernel(0.5))
    assert project.text == fakes.kernel(0.9)


def test_a_kept_step_that_does_not_pay_within_two_iterations_is_taken_back_to_the_best(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(0.9), keep_reason="it enables more")
    project.iterate(name, fakes.kernel(0.91), keep_reason="almost there")
    result = project.iterate(name, fakes.kernel(0.92), keep_reason="really")
    assert (result.status, result.reverted, project.text) == ("REGRESSED", True, fakes.kernel())
    assert result.reason.endswith("the step kept in iteration 1 has not paid within 2 iterations, back to the best")
    assert result.phase == "ready"  # the diagnosis was of the kept step


def test_nothing_is_kept_when_no_iteration_is_left_to_pay(project: Project) -> None:
    name = project.baseline(max_iterations=1).experiment
    result = project.iterate(name, fakes.kernel(0.9), keep_reason="it enables more")
    assert (result.status, result.ended) == ("REGRESSED", "MAX_ITERATIONS")


def test_a_neutral_step_that_is_kept_and_meets_the_target_ends_the_experiment(project: Project) -> None:
    name = project.baseline(target_value=100.5).experiment
    result = project.iterate(name, fakes.kernel(1.009), keep_reason="it is simpler")
    assert (result.status, result.best) == ("TARGET_MET", 100.9)


def test_one_workload_that_regresses_spoils_the_gain(project: Project) -> None:
    second = dataclasses.replace(fakes.WORKLOADS[0], name="small")
    project.evaluator.problem = dataclasses.replace(fakes.PROBLEM, workloads=(fakes.WORKLOADS[0], second))
    name = project.baseline().experiment

    def slower(e: Evaluation) -> Evaluation:
        if e.ratio is None:
            return e
        spoiled = dataclasses.replace(
            e.workloads[1], ratio=dataclasses.replace(e.ratio, value=0.8, low=0.79, high=0.81)
        )
        return dataclasses.replace(e, workloads=(e.workloads[0], spoiled))

    project.evaluator.spoil = slower
    result = project.iterate(name, fakes.kernel(1.5))
    assert result.status == "REGRESSED"
    assert result.reason == "workload 'small' got slower, at best -19.0%, whatever the others gained"


def test_a_target_that_a_cold_process_does_not_reproduce_is_not_claimed(project: Project) -> None:
    name = project.baseline().experiment
    result = project.iterate(name, fakes.kernel(6.0, COLD=4.0))
    assert (result.status, result.ended, result.phase) == ("IMPROVED", None, "ready")
    assert result.reason.endswith("the target is not claimed: a cold process measured 400 GBps")


def test_a_winner_that_fails_in_a_cold_process_is_taken_back(project: Project) -> None:
    name = project.baseline().experiment
    result = project.iterate(name, fakes.kernel(6.0, CONFIRM="INCORRECT_NUMERICAL"))
    assert (result.status, result.reverted, result.ended, project.text) == ("FAILED", True, None, fakes.kernel())
    assert "it met the target, but failed in a cold process (INCORRECT_NUMERICAL)" in result.reason


def test_a_best_that_fails_in_a_cold_process_makes_way_for_the_one_before(project: Project) -> None:
    name = project.baseline(max_iterations=2).experiment
    project.iterate(name, fakes.kernel(1.5))
    result = project.iterate(name, fakes.kernel(2.0, CONFIRM="RUNTIME_ERROR"))
    assert (result.status, result.ended, result.confirmed, result.best_iteration) == (
        "IMPROVED",
        "MAX_ITERATIONS",
        True,
        1,
    )
    assert project.text == fakes.kernel(1.5)
    assert "failed in a cold process (RUNTIME_ERROR)" in result.reason


def test_the_last_version_is_timed_in_turns_with_the_first_and_not_the_incumbent(project: Project) -> None:
    name = project.baseline(max_iterations=2).experiment
    project.iterate(name, fakes.kernel(1.5))
    result = project.iterate(name, fakes.kernel(3.0, COLD=2.5))
    said = "In turns with the first kernel, in a cold process: 2.5 times as fast (between 2.5 and 2.5)"
    assert result.notes == (said,)
    assert f"- {said}" in (project.root / "experiments" / "README.md").read_text().splitlines()


def test_a_version_that_is_slower_than_the_first_makes_way_for_the_one_before(project: Project) -> None:
    """Iterations may each have gained against an incumbent that was slow for their sake."""
    name = project.baseline(max_iterations=2).experiment
    project.iterate(name, fakes.kernel(1.5))
    result = project.iterate(name, fakes.kernel(2.0, COLD=0.9))
    assert (result.ended, result.confirmed, result.best_iteration) == ("MAX_ITERATIONS", True, 1)
    assert project.text == fakes.kernel(1.5)
    assert "is slower than the first kernel in a cold process (0.902 times as fast at most)" in result.reason


def test_a_first_kernel_that_fails_beside_the_last_is_left_out(project: Project) -> None:
    name = project.baseline(max_iterations=1).experiment

    def beside(e: Evaluation) -> Evaluation:
        return dataclasses.replace(e, status="INCONCLUSIVE", detail="the incumbent failed") if e.ratio else e

    project.loop.diagnose(name)
    project.patch(name, fakes.kernel(1.5))
    project.loop.verify(name)
    project.loop.benchmark(name)
    project.evaluator.spoil = beside
    result = project.loop.decide(name)
    assert (result.status, result.ended, result.confirmed, result.notes) == ("IMPROVED", "MAX_ITERATIONS", True, ())


def test_what_nothing_confirms_is_said_not_to_be_confirmed(project: Project) -> None:
    name = project.baseline().experiment
    project.evaluator.spoil = lambda e: dataclasses.replace(e, status="TIMEOUT", detail="too slow")
    result = project.loop.decide(name, stop=True, reason="enough")
    assert (result.ended, result.confirmed) == ("STOPPED", False)
    assert result.summary.endswith("0 iterations, NOT confirmed in a cold process, nothing is claimed.")


@pytest.mark.parametrize("steps", [(), ("diagnose",), ("diagnose", "patch"), ("diagnose", "patch", "verify")])
def test_an_experiment_can_be_stopped_anywhere_and_leaves_the_best_on_disk(
    project: Project, steps: tuple[str, ...]
) -> None:
    name = project.baseline().experiment
    for step in steps:
        project.patch(name, fakes.kernel(1.5)) if step == "patch" else getattr(project.loop, step)(name)
    result = project.loop.decide(name, stop=True, reason="no time left")
    assert (result.ended, result.phase, project.text) == ("STOPPED", "done", fakes.kernel())
    assert "no time left" in result.reason


def test_stopping_after_a_benchmark_still_counts_the_gain(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    project.loop.verify(name)
    project.loop.benchmark(name)
    result = project.loop.decide(name, stop=True, reason="good enough")
    assert (result.status, result.ended, result.best) == ("IMPROVED", "STOPPED", 150.0)


def test_stopping_needs_a_reason(project: Project) -> None:
    name = project.baseline().experiment
    with pytest.raises(InputRefused, match="stop is given without a reason"):
        project.loop.decide(name, stop=True)
    assert project.loop.log(name).phase == "ready"


# log, other servers, damage


def test_the_log_gives_an_agent_all_that_it_needs_to_go_on(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(1.5))
    project.iterate(name, fakes.kernel(0.5), hypothesis="fewer warps")
    project.patch(name, fakes.kernel(1.7), "fuse the passes")
    seen = project.reopened().log(name)
    assert (seen.phase, seen.next, seen.best, seen.best_iteration, seen.iterations_left) == (
        "patched", ("verify",), 150.0, 1, 2,
    )  # fmt: skip
    assert seen.pending == "iteration 3 ('fuse the passes') is patched"
    assert seen.tried == ("T1 fewer warps: REGRESSED, reverted",)
    assert seen.read == ()  # the diagnosis was of the version before
    assert "as it should be" in seen.on_disk


def test_the_list_of_experiments_leads_on_to_one_that_is_not_over(project: Project) -> None:
    assert project.loop.log().next == ("detect_gpu", "baseline")
    name = project.baseline().experiment
    assert project.loop.log().next == ("log", "detect_gpu", "baseline")
    project.loop.decide(name, stop=True, reason="not wanted")
    assert project.loop.log().next == ("detect_gpu", "baseline")


def test_past_iterations_are_found_by_their_words(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(0.5), hypothesis="use num_warps=8")
    assert project.loop.log(query="warps REGRESSED").matches[0].startswith(f"{name} #1 T1 use num_warps=8: REGRESSED")
    assert project.loop.log(query="tensor cores").matches == ()


def test_what_was_recovered_is_said_even_when_the_call_is_then_refused(project: Project) -> None:
    name = project.diagnosed()
    project.kernel.unlink()
    with pytest.raises(GuardRefused) as refusal:
        project.loop.verify(name)
    assert "is not allowed while" in str(refusal.value)
    assert "Before that, softmax.py was missing" in str(refusal.value)
    assert project.text == fakes.kernel()


def test_a_reader_of_the_journals_sees_that_two_steps_never_held_the_device_at_once(project: Project) -> None:
    name = project.baseline(target_value=140).experiment
    project.iterate(name, fakes.kernel(1.5))
    journal = Journal(project.root / "experiments" / name / "journal.jsonl").read()
    held = [e.data["held"] for e in journal if "held" in e.data]
    held += [c["held"] for e in journal for c in e.data.get("confirmations", ())]
    assert len(held) == 4
    assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(held))


def test_two_servers_see_one_experiment(project: Project) -> None:
    name = project.diagnosed()
    other = project.reopened()
    project.patch(name, fakes.kernel(1.5))
    assert other.verify(name).correct
    assert project.loop.benchmark(name).verdict == "better"


def test_a_damaged_journal_is_refused_and_listed_and_others_go_on(project: Project) -> None:
    broken, whole = project.baseline().experiment, project.baseline().experiment
    path = project.root / "experiments" / broken / "journal.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    for call in (project.loop.log, project.loop.diagnose):
        with pytest.raises(JournalCorrupt, match="line 1 does not verify"):
            call(broken)
    assert project.loop.log().damaged == (broken,)
    assert project.loop.diagnose(whole).phase == "diagnosed"


def test_experiments_that_lead_out_of_the_project_are_not_written_to(project: Project) -> None:
    outside = project.root.parent / "outside"
    outside.mkdir()
    (project.root / "experiments").symlink_to(outside)
    with pytest.raises(WorkspaceFailed, match="experiments/ leads out of the project"):
        project.baseline()
    assert list(outside.iterdir()) == []


def test_folders_that_were_turned_into_ways_out_later_are_not_written_to_either(project: Project) -> None:
    name = project.diagnosed()
    outside = project.root.parent / "outside"
    ours = project.root / "experiments"
    (ours / name / "candidates").rename(outside)
    (ours / name / "candidates").symlink_to(outside)
    before = sorted(outside.iterdir())
    with pytest.raises(WorkspaceFailed, match=rf"experiments/{name}/candidates leads out of the project; nothing is"):
        project.patch(name, fakes.kernel(1.5))
    assert sorted(outside.iterdir()) == before
    ours.rename(outside / "experiments")
    ours.symlink_to(outside / "experiments")
    journal = (outside / "experiments" / name / "journal.jsonl").read_bytes()
    with pytest.raises(WorkspaceFailed, match="experiments/ leads out of the project"):
        project.reopened().profile(name)
    assert (outside / "experiments" / name / "journal.jsonl").read_bytes() == journal


def test_every_answer_is_small(project: Project) -> None:
    answers: list[StepResult] = [project.baseline()]
    name = answers[0].experiment
    for number in range(5):
        if project.loop.log(name).phase == "ready":
            answers.append(project.loop.diagnose(name))
        answers.append(
            project.loop.apply_patch(name, 1, "h" * 300, content=fakes.kernel(1.1 + number / 10), idea="i" * 80)
        )
        answers += [project.loop.verify(name), project.loop.benchmark(name), project.loop.decide(name)]
    sizes = [len(json.dumps(a.model_dump(mode="json"), separators=(",", ":"))) for a in answers]
    sizes.append(len(json.dumps(project.loop.log(name).model_dump(mode="json"), separators=(",", ":"))))
    assert max(sizes) <= 4096
