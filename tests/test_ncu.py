"""Nsight Compute: real H200 reports, made-up ones, and the failures it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kopt_mcp.errors import ToolUnavailable
from kopt_mcp.models import Profile
from kopt_mcp.platforms import ncu
from kopt_mcp.platforms.ncu_report import Result, parse
from kopt_mcp.platforms.reports import assemble, owner_of

DATA = Path(__file__).parent / "data" / "profilers"
WIDE = (DATA / "ncu_2025.3_h200_triton_softmax_raw_wide.csv").read_text()
DETAILS = (DATA / "ncu_2025.3_h200_triton_softmax_details.txt").read_text()


def profile(report: str) -> Profile:
    return of(*parse(report))


def of(*results: Result) -> Profile:
    return assemble(ncu.launches(results), rung="ncu", workload="big", why="counters are open")


def printed(name: str) -> float:
    found = re.search(rf"^\s+{re.escape(name)}\s+(?:\S+\s+)?([\d.,]+)\s*$", DETAILS, re.MULTILINE)
    assert found, name
    return float(found[1].replace(",", ""))


# --- reports ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "metric", "scale"),
    [
        ("DRAM Throughput", "dram_pct", 1),
        ("Compute (SM) Throughput", "sm_pct", 1),
        ("Duration", "duration_us", 1),
        ("Achieved Occupancy", "occupancy_pct", 1),
        ("Theoretical Occupancy", "occupancy_theoretical_pct", 1),
        ("Waves Per SM", "waves", 1),
        ("Registers Per Thread", "registers", 1),
        ("Grid Size", "grid_blocks", 1),
        ("L2 Hit Rate", "l2_hit_pct", 1),
        ("Issued Warp Per Scheduler", "issue_pct", 100),
        ("Avg. Not Predicated Off Threads Per Warp", "divergence_lanes", 1),
    ],
)
def test_the_raw_page_agrees_with_the_details_page_of_another_run_of_the_kernel(
    name: str, metric: str, scale: float
) -> None:
    assert profile(WIDE).metrics[metric] == pytest.approx(printed(name) * scale, rel=0.02)


def test_bytes_of_the_h200_softmax_are_those_of_the_arrays() -> None:
    metrics = profile(WIDE).metrics
    assert metrics["dram_bytes"] == pytest.approx(2 * 32768 * 4096 * 2, rel=0.1)
    assert metrics["load_bytes"] == 16.0
    assert metrics["bytes_per_sector_load"] == 32.0


def test_the_top_stall_has_the_share_that_ncu_prints() -> None:
    metrics = profile(WIDE).metrics
    stalls = {name: value for name, value in metrics.items() if name.startswith("stall_") and value is not None}
    assert max(stalls, key=lambda name: stalls[name]) == "stall_long_scoreboard_pct"
    assert stalls["stall_long_scoreboard_pct"] == pytest.approx(43.8, abs=1.5)


def test_the_authored_kernel_has_the_whole_time() -> None:
    seen = profile(WIDE)
    assert [(kernel.name, kernel.owner, kernel.share_pct) for kernel in seen.kernels] == [
        ("softmax_k", "authored", 100.0)
    ]
    assert seen.rung == "ncu"
    assert seen.facts["occupancy_limiter"] == "warps"


def test_every_quick_metric_of_hopper_is_known_to_a_real_ncu() -> None:
    assert [metric for metric in ncu.metrics_for("sm_90") if metric not in parse(WIDE)[0].values] == []


def test_not_available_is_null_and_never_zero() -> None:
    columns = '"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"\n'
    metrics = profile(columns + '"","","byte","byte","ns"\n"0","k","n/a","8","1000"\n').metrics
    assert (metrics["dram_bytes"], metrics["dram_pct"], metrics["duration_us"]) == (None, None, 1.0)


def test_what_the_program_prints_itself_is_no_row() -> None:
    printed_between = WIDE.replace('"0",', 'step 1, loss 2.5\n"0",', 1)
    assert parse(printed_between) == parse(WIDE)


def test_launches_of_one_kernel_add_up_and_the_longest_gives_the_other_metrics() -> None:
    short = Result("k", values={"gpu__time_duration.sum": 1000.0, "launch__registers_per_thread": 32.0})
    long = Result("k", values={"gpu__time_duration.sum": 3000.0, "launch__registers_per_thread": 64.0})
    seen = of(short, long)
    assert seen.metrics["duration_us"] == 4.0
    assert seen.metrics["registers"] == 64.0
    assert seen.kernels[0].calls == 2


def test_shares_are_by_duration_and_the_largest_comes_first() -> None:
    small = Result("void at::native::vectorized_elementwise_kernel<4, X>(int)", values={"gpu__time_duration.sum": 1e3})
    large = Result("mine", values={"gpu__time_duration.sum": 9e3})
    seen = of(small, large)
    assert [(kernel.owner, kernel.share_pct) for kernel in seen.kernels] == [("authored", 90.0), ("framework", 10.0)]


def test_a_kernel_that_loads_by_tma_only_has_no_bytes_per_sector() -> None:
    name = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
    seen = of(Result("k", values={name: 0.0}))
    assert seen.metrics["bytes_per_sector_load"] is None


@pytest.mark.parametrize(
    ("values", "instruction"),
    [
        ({"sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_elapsed": 40.0}, "wgmma"),
        ({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 40.0}, "mma.sync"),
        ({"sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_elapsed": 40.0}, "tcgen05"),
        ({"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 0.0}, None),
    ],
)
def test_the_matrix_instruction_is_named_after_the_pipe_that_worked(
    values: dict[str, float | None], instruction: str | None
) -> None:
    assert of(Result("k", values=values)).facts.get("mma") == instruction


@pytest.mark.parametrize(
    ("cell", "unit", "expected"),
    [
        ("4,963,609,951.19", "byte/s", 4963609951.19),
        ("3995313115.40", "byte/s", 3995313115.40),
        ("2.5", "msecond", 2.5e6),
        ("2.5", "us", 2.5e3),
        ("3", "s", 3e9),
        ("1.02", "Kbyte/block", 1020.0),
        ("1.9", "Ghz", 1.9e9),
        ("4.02", "Tbyte/s", 4.02e12),
        ("n/a", "%", None),
        ("", "%", None),
        ("nan", "", None),
        ("(!) n/a", "%", None),
    ],
)
def test_cells_are_read_in_base_units(cell: str, unit: str, expected: float | None) -> None:
    report = f'"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","k","m__x.sum","{unit}","{cell}"\n'
    value = parse(report)[0].values["m__x.sum"]
    assert value == (None if expected is None else pytest.approx(expected))


# --- commands --------------------------------------------------------------------------------------------------


def test_the_command_records_only_what_the_target_brackets() -> None:
    line = " ".join(ncu.command("ncu", ["python", "t.py"], log_file="r.csv", metrics=["a.sum", "b.sum"]))
    for option in (
        "--profile-from-start off",
        "--target-processes all",
        "--clock-control none",
        "--cache-control all",
        "--metrics a.sum,b.sum",
        "--csv --page raw --print-units base",
    ):
        assert option in line
    assert line.endswith("--log-file r.csv python t.py")
    assert "--set" not in line


def test_the_full_depth_adds_every_section() -> None:
    assert "--set full" in " ".join(ncu.command("ncu", ["t"], log_file="r", metrics=["a"], export="out"))


@pytest.mark.parametrize(
    ("arch", "tensor"),
    [
        ("sm_75", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"),
        ("sm_89", "sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_elapsed"),
        ("sm_90", "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_elapsed"),
        ("sm_100", "sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_elapsed"),
    ],
)
def test_the_tensor_pipe_has_the_name_of_its_architecture(arch: str, tensor: str) -> None:
    assert tensor in ncu.metrics_for(arch)


def test_hopper_metrics_are_not_asked_of_ampere() -> None:
    assert not [metric for metric in ncu.metrics_for("sm_80") if "gmma" in metric]


def test_an_unknown_metric_is_dropped_and_the_rest_retried() -> None:
    output = r"==ERROR== Failed to find metric regex:^sm__pipe_tc_cycles_active(\.|$)"
    kept = ncu.without_unknown(
        ["a.sum", "sm__pipe_tc_cycles_active.avg.x", "sm__pipe_tc_cycles_active_more.avg"], output
    )
    assert kept == ["a.sum", "sm__pipe_tc_cycles_active_more.avg"]


def test_a_metric_named_in_full_is_dropped_too() -> None:
    assert ncu.without_unknown(["a.sum", "b.sum"], r"==ERROR== Failed to find metric regex:^b\.sum$") == ["a.sum"]


@pytest.mark.parametrize("output", ["==PROF== all fine", "==ERROR== Failed to find metric a.sum"])
def test_there_is_nothing_to_retry_when_no_metric_or_every_metric_is_refused(output: str) -> None:
    assert ncu.without_unknown(["a.sum"], output) is None


# --- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters", "permission"),
        ("==WARNING== No kernels were profiled.", "no_kernels"),
        ("==ERROR== Target process 71 terminated before first instrumented API call.", "wrong_process"),
        ("Profiling kernels launched by child processes requires the --target-processes all option.", "wrong_process"),
        ("==ERROR== Profiling failed because a driver resource was unavailable. Ensure that DCGM is off.", "busy"),
        ("==ERROR== Failed to find metric regex:^x", "metric"),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute", "version"),
        ("==ERROR== Failed to load Nsight Compute CUDA modules", "version"),
        ("==ERROR== Failed to prepare kernel for profiling\n==ERROR== Unknown Error on device 0.", "version"),
        ('==ERROR== Failed to profile "k" in process 3', "resources"),
        ("==ERROR== An error occurred while trying to profile.", "resources"),
        ("==ERROR== The application returned an error code (9).", "target"),
        ("==ERROR== LaunchFailed", "resources"),
        ("==ERROR== Received signal 11", "resources"),
        ("NV_INJ_ERROR_NOT_INITIALIZED", "version"),
    ],
)
def test_each_failure_text_has_a_class_and_a_remedy(output: str, kind: str) -> None:
    found = ncu.failure(f"==PROF== Connected to process 71\n{output}\n")
    assert found is not None
    assert found.kind == kind
    assert found.text in output
    assert found.remedy


def test_a_reverted_clock_of_an_earlier_run_is_harmless() -> None:
    assert ncu.failure("==WARNING== Found outstanding GPU clock reset, trying to revert...Success") is None


def test_the_cause_is_named_before_its_consequence() -> None:
    found = ncu.failure("==ERROR== ERR_NVGPUCTRPERM\n==WARNING== No kernels were profiled.")
    assert found is not None
    assert found.kind == "permission"


def test_the_real_output_of_a_run_that_profiled_nothing_is_a_failure_although_ncu_exited_0() -> None:
    found = ncu.failure((DATA / "ncu_2025.3_h200_no_kernels.txt").read_text())
    assert found is not None
    assert (found.kind, "1. softmax_kernel" in found.remedy) == ("no_kernels", True)


def test_the_real_output_for_an_unknown_metric_is_no_failure_and_its_value_is_null() -> None:
    output = (DATA / "ncu_2025.3_h200_unknown_metric.txt").read_text()
    (result,) = parse(output)
    assert ncu.failure(output) is None
    assert result.values == {"gpu__time_duration.sum": 128704.0, "sm__no_such_metric.sum": None}


def test_where_no_kernel_was_profiled_those_that_ncu_saw_are_named() -> None:
    output = "==WARNING== No kernels were profiled.\nAvailable Kernels:\n  1. fill_kernel\n  2. row_sum\n"
    found = ncu.failure(output)
    assert found is not None
    assert (found.kind, "1. fill_kernel, 2. row_sum" in found.remedy) == ("no_kernels", True)


@pytest.mark.parametrize(
    ("values", "counted"),
    [
        ({"sm__cycles_active.avg": 812.5}, True),
        ({"sm__cycles_active.avg": None, "launch__grid_size": 64.0}, False),
        ({}, False),
    ],
)
def test_counters_are_open_only_when_a_number_came_back(values: dict[str, float | None], counted: bool) -> None:
    assert ncu.counted([Result("k", values=values)]) is counted


# --- whose kernel ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("softmax_k", "authored"),
        ("void scale<float, 4>(float *, const float *, int)", "authored"),
        ("memcpy_rows", "authored"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", "vendor"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "vendor"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>(Params)", "vendor"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "vendor"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>(int)", "vendor"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1", "vendor"),
        ("MIOpenSoftmaxForward.kd", "vendor"),
        ("void at::native::vectorized_elementwise_kernel<4, X>(int, X)", "framework"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8>(int)", "framework"),
        ("triton_poi_fused_add_0", "framework"),
        ("triton_red_fused_sum_1", "framework"),
        ("Memcpy DtoD (Device -> Device)", "framework"),
    ],
)
def test_a_kernel_belongs_to_its_author_a_library_or_the_framework(name: str, owner: str) -> None:
    assert owner_of(name) == owner


def test_the_candidates_own_names_win_over_every_pattern() -> None:
    assert owner_of("triton_red_mine", {"triton_red_mine"}) == "authored"
    assert owner_of("void ns::hopper_gemm<128>(int)", {"hopper_gemm"}) == "authored"
    assert owner_of("void ns::hopper_gemm<128>(int)") == "vendor"


def test_no_launch_is_an_error() -> None:
    with pytest.raises(ToolUnavailable, match="no kernel was recorded"):
        of()
