"""The ladder of profilers: which rung is taken, why not a higher one, and what is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from profiling import DATA, EPYC, H200, MI300X, TRITON, Machine, NoTorchProfiler, RecordedLaunch, ShortKernels, compiled

from kopt_mcp.errors import Cancelled, InputRefused
from kopt_mcp.models import Profile, Profiler
from kopt_mcp.platforms.host import Host, Ran
from kopt_mcp.platforms.profilers import ncu
from kopt_mcp.profiling.cpu import parse
from kopt_mcp.watch import Watch

WIDE = (DATA / "ncu_2025.3_h200_triton_softmax_raw_wide.csv").read_text()
REFUSED = "ERR_NVGPUCTRPERM"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def without_tools(tmp_path: Path) -> Host:
    """A host whose file system is empty."""
    (tmp_path / "empty").mkdir()
    return Host(root=tmp_path / "empty", env={"PATH": "/usr/bin"})


# --- nvidia ----------------------------------------------------------------------------------------------------


def test_where_counters_may_be_read_ncu_is_the_rung(machine: Machine) -> None:
    machine.install_ncu("counts")
    seen = machine.profile(machine.ladder())
    assert (seen.rung, seen.kernels[0].name) == ("ncu", "softmax_k")
    assert seen.metrics["dram_pct"] == pytest.approx(84.5, abs=1)
    assert seen.metrics["latency_us"] == 1000.0
    assert seen.facts["tool_version"] == "ncu 2025.3.1.0"


def test_the_raw_report_and_all_metrics_are_kept(machine: Machine) -> None:
    machine.install_ncu("counts")
    seen = machine.profile(machine.ladder())
    kept = {Path(path).name: Path(path) for path in seen.artifacts}
    assert set(kept) == {"ncu.csv", "metrics.json"}
    assert kept["ncu.csv"].read_text() == WIDE
    assert Profile.model_validate_json(kept["metrics.json"].read_text()).metrics == seen.metrics


@pytest.mark.parametrize("mode", ["refuses", "refuses aloud"])
def test_a_refusal_whatever_the_exit_status_leads_to_torch_profiler_and_is_quoted(machine: Machine, mode: str) -> None:
    machine.install_ncu(mode)
    seen = machine.profile(machine.ladder())
    assert seen.rung == "torch_profiler"
    assert seen.why.startswith(f"ncu: ==ERROR== {REFUSED}")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in seen.why


def test_a_refusal_is_remembered_also_by_another_server(machine: Machine) -> None:
    machine.install_ncu("refuses")
    machine.profile(machine.ladder())
    (machine.bin / "mode").write_text("counts")
    seen = machine.profile(machine.ladder())
    assert (seen.rung, len(machine.ncu_runs)) == ("torch_profiler", 1)
    assert REFUSED in seen.why


def test_asking_for_the_full_set_tries_again_what_was_refused(machine: Machine) -> None:
    machine.install_ncu("refuses")
    machine.profile(machine.ladder())
    (machine.bin / "mode").write_text("counts")
    assert machine.profile(machine.ladder(), depth="full").rung == "ncu"
    assert machine.profile(machine.ladder()).rung == "ncu"


def test_a_new_driver_is_asked_anew(machine: Machine) -> None:
    machine.install_ncu("refuses")
    machine.profile(machine.ladder())
    (machine.bin / "mode").write_text("counts")
    machine.device = H200.model_copy(update={"versions": {"driver": "590.0"}})
    assert machine.profile(machine.ladder()).rung == "ncu"


def test_what_was_found_about_counters_is_merged_into_the_device(machine: Machine) -> None:
    machine.install_ncu("refuses")
    ladder = machine.ladder()
    machine.profile(ladder)
    untried = Profiler(name="nsys", path=None, version=None, usable=False, remedy="install it")
    known = ladder.access.applied(H200.model_copy(update={"profilers": [ncu(machine.host()), untried]}))
    assert [(tool.name, tool.usable, REFUSED in tool.remedy) for tool in known.profilers[:1]] == [("ncu", False, True)]
    assert known.profilers[1:] == [untried]


def test_the_exit_status_0_without_a_kernel_is_no_profile(machine: Machine) -> None:
    machine.install_ncu("sees no kernel")
    seen = machine.profile(machine.ladder())
    assert seen.rung == "torch_profiler"
    assert "No kernels were profiled" in seen.why
    assert "softmax_kernel" in seen.why


def test_an_unknown_metric_is_dropped_and_the_rest_measured(machine: Machine) -> None:
    machine.install_ncu("knows fewer metrics")
    seen = machine.profile(machine.ladder())
    first, second = (run[run.index("--metrics") + 1].split(",") for run in machine.ncu_runs)
    assert seen.rung == "ncu"
    assert set(first) - set(second) == {"lts__throughput.avg.pct_of_peak_sustained_elapsed"}


def test_a_profiler_that_does_not_end_is_ended_and_the_remedy_said(machine: Machine) -> None:
    machine.install_ncu("hangs")
    machine.timeout_s = 1.0
    seen = machine.profile(machine.ladder())
    assert seen.rung == "torch_profiler"
    assert "did not end in time" in seen.why
    assert "smaller workload" in seen.why


def test_a_hang_before_the_profiled_call_is_the_candidates(machine: Machine) -> None:
    machine.install("ncu")
    launch = RecordedLaunch(ncu=lambda argv, folder: Ran(failure="timeout"))
    launch.answer = {"stage": "warming up"}
    seen = machine.profile(machine.ladder(launch))
    assert "while warming up" in seen.why
    assert "the candidate itself hangs" in seen.why


def test_a_candidate_that_fails_under_ncu_is_quoted(machine: Machine) -> None:
    machine.install_ncu("runs the target")
    machine.problem.write_text("raise ValueError('no such luck')\n")
    seen = machine.profile(machine.ladder())
    assert seen.rung == "torch_profiler"
    assert "the candidate failed while loading the problem" in seen.why
    assert "no such luck" in seen.why


def test_a_missing_ncu_is_said_with_the_remedy(machine: Machine, tmp_path: Path) -> None:
    seen = machine.profile(machine.ladder(host=without_tools(tmp_path)))
    assert seen.rung == "torch_profiler"
    assert seen.why.startswith("ncu: ncu was not found: install Nsight Compute; ")


def test_a_full_report_is_kept_with_its_details_page(machine: Machine) -> None:
    machine.install_ncu("counts")
    seen = machine.profile(machine.ladder(), depth="full")
    assert [Path(path).name for path in seen.artifacts] == ["ncu.csv", "details.txt", "report.ncu-rep", "metrics.json"]
    assert "GPU Speed Of Light Throughput" in Path(seen.artifacts[1]).read_text()
    assert seen.metrics["dram_pct"] == pytest.approx(84.5, abs=1)


def test_the_target_runs_isolated_and_between_marks(machine: Machine) -> None:
    machine.install("ncu")
    launch = RecordedLaunch(ncu=lambda argv, folder: Ran(returncode=0))
    machine.profile(machine.ladder(launch))
    (job,) = launch.jobs
    assert (job["marks"], job["workload"], job["shut_in"]) == ("cuda", "w", False)
    assert launch.calls[0][-6:-3] == ["-I", "-B", "-c"]
    assert "--profile-from-start off" in " ".join(launch.calls[0])


def test_how_far_the_candidate_was_shut_in_is_among_the_facts(machine: Machine) -> None:
    machine.install("ncu")

    def counts(argv: list[str], folder: Path) -> Ran:
        (folder / "ncu.csv").write_text(WIDE)
        return Ran(returncode=0)

    launch = RecordedLaunch(ncu=counts)
    launch.answer["isolation"] = "resource limits only"
    assert machine.profile(machine.ladder(launch)).facts["isolation"] == "resource limits only"


# --- what is added on every rung -------------------------------------------------------------------------------


def test_launching_is_timed_where_kernels_are_short(machine: Machine, tmp_path: Path) -> None:
    launch = RecordedLaunch()
    machine.evaluator = ShortKernels()
    seen = machine.profile(machine.ladder(launch, without_tools(tmp_path)))
    assert seen.metrics["launch_us"] == 12.5
    assert [(job["marks"], job["shut_in"]) for job in launch.jobs] == [("none", True)]


@pytest.mark.parametrize("told", [None, "soon", True, -1, float("nan"), [1]])
def test_a_host_time_that_is_none_is_left_out(machine: Machine, tmp_path: Path, told: object) -> None:
    launch = RecordedLaunch()
    launch.answer["host_us"] = told
    machine.evaluator = ShortKernels()
    assert "launch_us" not in machine.profile(machine.ladder(launch, without_tools(tmp_path))).metrics


def test_launching_is_not_timed_where_kernels_are_long(machine: Machine, tmp_path: Path) -> None:
    launch = RecordedLaunch()
    assert "launch_us" not in machine.profile(machine.ladder(launch, without_tools(tmp_path))).metrics
    assert launch.jobs == []


def test_the_compiler_fills_what_was_not_counted_and_counters_win(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", kernel=TRITON)
    machine.install("ncu")

    def counts(argv: list[str], folder: Path) -> Ran:
        (folder / "ncu.csv").write_text(WIDE)
        return Ran(returncode=0)

    seen = machine.profile(machine.ladder(RecordedLaunch(ncu=counts)))
    assert (seen.metrics["registers"], seen.metrics["load_bytes"]) == (32.0, 16.0)
    assert (seen.facts["async_copy"], seen.facts["occupancy_limiter"]) == ("cp.async", "warps")
    assert [kernel.registers for kernel in seen.compiled] == [40]


def test_a_compiler_that_fails_fails_no_profile(tmp_path: Path) -> None:
    def broken(kernel: Path, **options: object) -> list[object]:
        raise ZeroDivisionError("a bug")

    machine = Machine(tmp_path / "machine", kernel=TRITON, static=broken)
    seen = machine.profile(machine.ladder(RecordedLaunch(), without_tools(tmp_path)))
    assert seen.rung == "torch_profiler"
    assert "ZeroDivisionError" in seen.facts["static"]


def test_a_kernel_is_compiled_once_for_all_its_profiles(tmp_path: Path) -> None:
    calls = []

    def static(kernel: Path, **options: object) -> list[object]:
        calls.append(options)
        return [compiled()]

    machine = Machine(tmp_path / "machine", kernel=TRITON, static=static)
    ladder = machine.ladder(RecordedLaunch(), without_tools(tmp_path))
    machine.profile(ladder)
    machine.profile(ladder)
    assert [(options["target"], options["units"], options["entry"]) for options in calls] == [("sm_90", 132, "softmax")]


def test_where_no_profiler_sees_anything_the_compiler_is_the_rung(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", kernel=TRITON, evaluator=NoTorchProfiler())
    seen = machine.profile(machine.ladder(RecordedLaunch(), without_tools(tmp_path)))
    assert seen.rung == "static"
    assert seen.metrics["registers"] == 40.0
    assert seen.metrics["duration_us"] == 1000.0


def test_at_the_lowest_rung_every_higher_one_says_why_not(machine: Machine, tmp_path: Path) -> None:
    def refuses(kernel: Path, **options: object) -> list[object]:
        raise InputRefused("target 'sm_999' is not known")

    machine.evaluator = NoTorchProfiler()
    machine.static = refuses
    machine.candidate.write_text(TRITON)
    seen = machine.profile(machine.ladder(RecordedLaunch(), without_tools(tmp_path)))
    assert (seen.rung, seen.metrics["duration_us"]) == ("timing", 1000.0)
    assert "ncu was not found" in seen.why
    assert "torch.profiler: torch_profiler: no kernel was recorded" in seen.why
    assert "sm_999" in seen.facts["static"]


def test_a_cancelled_call_gives_no_profile(machine: Machine) -> None:
    machine.install_ncu("hangs")
    watch = Watch(lambda fraction, text: watch.cancel() if text.startswith("ncu runs") else None)
    with pytest.raises(Cancelled):
        machine.profile(machine.ladder(), watch=watch)


# --- amd -------------------------------------------------------------------------------------------------------


class Rocm:
    """rocprofv3 as its files tell: a trace, and what the counters of each pass gave."""

    def __init__(self, counters: str = "rocprofv3_pass{}_counter_collection.csv", says: str = "") -> None:
        self.counters = counters
        self.says = says
        self.passes = 0

    def __call__(self, argv: list[str], folder: Path) -> Ran:
        directory = Path(argv[argv.index("-d") + 1], "host")
        directory.mkdir(parents=True, exist_ok=True)
        if "--pmc" not in argv:
            (directory / "kopt_kernel_trace.csv").write_text((DATA / "rocprofv3_kernel_trace.csv").read_text())
            return Ran(returncode=0)
        name = self.counters.format(min(self.passes, 2))
        (directory / f"kopt_pass{self.passes}_counter_collection.csv").write_text((DATA / name).read_text())
        self.passes += 1
        return Ran(stderr=self.says, returncode=0)


@pytest.fixture
def instinct(tmp_path: Path) -> Machine:
    rocm = tmp_path / "rocm"
    (rocm / "lib").mkdir(parents=True)
    (rocm / "lib" / "librocprofiler-sdk-roctx.so.1").write_text("")
    machine = Machine(tmp_path / "machine", device=MI300X, env={"ROCM_PATH": str(rocm)})
    machine.install("rocprofv3")
    return machine


def test_rocprofv3_counts_the_call_between_its_marks(instinct: Machine) -> None:
    launch = RecordedLaunch(rocprofv3=Rocm())
    seen = instinct.profile(instinct.ladder(launch))
    assert (seen.rung, seen.kernels[0].name) == ("rocprofv3", "row_softmax")
    assert seen.metrics["dram_bytes"] is not None
    assert {job["marks"] for job in launch.jobs} == {"roctx"}
    assert all("--selected-regions" in call for call in launch.calls)
    assert "kernel_trace.csv" in [Path(path).name for path in seen.artifacts]


def test_without_counters_the_trace_alone_is_a_profile(instinct: Machine) -> None:
    refused = "Device 0 could not be locked for profiling due to lack of permissions (capability SYS_PERFMON)"
    seen = instinct.profile(instinct.ladder(RecordedLaunch(rocprofv3=Rocm(says=refused))))
    assert seen.rung == "rocprofv3"
    assert seen.metrics["dram_bytes"] is None
    assert "CAP_PERFMON" in seen.facts["counters"]


def test_without_the_marks_library_torch_profiler_is_the_rung(instinct: Machine) -> None:
    instinct.env["ROCM_PATH"] = str(instinct.root)
    seen = instinct.profile(instinct.ladder(RecordedLaunch(rocprofv3=Rocm())))
    assert seen.rung == "torch_profiler"
    assert "librocprofiler-sdk-roctx.so was not found" in seen.why


def test_a_trace_without_kernels_names_the_cause(instinct: Machine) -> None:
    refused = Ran(stderr="Unable to open /dev/kfd read-write: Invalid argument", returncode=1)
    seen = instinct.profile(instinct.ladder(RecordedLaunch(rocprofv3=lambda argv, folder: refused)))
    assert seen.rung == "torch_profiler"
    assert "groups render and video" in seen.why
    blank = instinct.profile(instinct.ladder(RecordedLaunch(rocprofv3=lambda argv, folder: Ran(returncode=0))))
    assert "the report holds no kernel" in blank.why


def test_the_legacy_rocprof_is_the_rung_below(instinct: Machine) -> None:
    def stats(argv: list[str], folder: Path) -> Ran:
        (folder / "results.stats.csv").write_text((DATA / "rocprof_results.stats.csv").read_text())
        return Ran(returncode=0)

    instinct.install("rocprof")
    instinct.evaluator = NoTorchProfiler()
    launch = RecordedLaunch(rocprofv3=lambda argv, folder: Ran(failure="timeout"), rocprof=stats)
    seen = instinct.profile(instinct.ladder(launch))
    assert seen.rung == "rocprof"
    assert "rocprofv3 did not end in time" in seen.why
    assert "whole process" in seen.facts["scope"]


# --- cpu -------------------------------------------------------------------------------------------------------

COUNTED = "1000,,cycles,1,100.00,,\n3000,,instructions,1,100.00,3.00,insn per cycle\n20,,cache-misses,1,100.00,,\n"
NOT_COUNTED = "<not supported>,,cycles,0,100.00,,\n<not counted>,,instructions:u,0,100.00,,\n"


def cpu(tmp_path: Path, answers: str) -> tuple[Machine, Host]:
    """A C kernel, and a host whose perf answers the probe so."""
    machine = Machine(tmp_path / "machine", device=EPYC, kernel="void softmax(void) {}\n", suffix=".c")
    machine.install("perf")
    return machine, machine.host(lambda argv, timeout_s=20.0: Ran(stdout="perf version 6.1", stderr=answers))


def perf(argv: list[str], folder: Path) -> Ran:
    Path(argv[argv.index("-o") + 1]).write_text(COUNTED)
    return Ran(returncode=0)


def test_a_c_kernel_is_counted_by_perf_where_it_counts(tmp_path: Path) -> None:
    machine, host = cpu(tmp_path, COUNTED)
    launch = RecordedLaunch(perf=perf)
    seen = machine.profile(machine.ladder(launch, host))
    assert seen.rung == "perf"
    assert seen.why.startswith("torch.profiler: it sees torch's operators, and this kernel is C; ")
    assert (seen.metrics["ipc"], seen.metrics["cycles"], seen.metrics["cache_misses"]) == (3.0, 50.0, 1.0)
    assert launch.jobs[0]["shut_in"]


def test_a_perf_that_counts_nothing_is_no_rung(tmp_path: Path) -> None:
    machine, host = cpu(tmp_path, NOT_COUNTED)
    seen = machine.profile(machine.ladder(RecordedLaunch(perf=perf), host))
    assert seen.rung == "timing"
    assert "perf: " in seen.why


def test_what_perf_did_not_count_is_left_out() -> None:
    assert parse(NOT_COUNTED + "garbage\n") == {}
    assert parse(COUNTED) == {"cycles": 1000.0, "instructions": 3000.0, "cache_misses": 20.0}


def test_the_compilers_report_is_the_rung_of_a_c_kernel_without_perf(tmp_path: Path) -> None:
    def gcc(argv: list[str], folder: Path) -> Ran:
        if json.loads((folder / "job.json").read_text())["op"] == "vectorization":
            (folder / "vectorization.txt").write_text(
                f"{folder}/kernel.c:7:5: optimized: loop vectorized using 32 byte vectors\n"
            )
        return Ran(returncode=0)

    machine, host = cpu(tmp_path, NOT_COUNTED)
    launch = RecordedLaunch(**{Path(sys.executable).name: gcc})
    launch.answer = {"shift": 1}
    seen = machine.profile(machine.ladder(launch, host))
    assert (seen.rung, seen.facts["vectorized"]) == ("static", "line 6")


def test_triton_without_a_gpu_is_not_timed_by_its_interpreter(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", device=EPYC, kernel=TRITON)
    seen = machine.profile(machine.ladder(RecordedLaunch(), without_tools(tmp_path)))
    assert seen.rung == "timing"
    assert "interpreter" in seen.why
