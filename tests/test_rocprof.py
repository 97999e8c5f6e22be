"""rocprofv3 and the legacy rocprof on small files with the public layouts; no AMD hardware was at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from kopt_mcp.models import Profile
from kopt_mcp.platforms import rocprof
from kopt_mcp.platforms.reports import Launched, assemble
from kopt_mcp.platforms.rocprof_counters import derive, passes
from kopt_mcp.platforms.rocprof_report import read_counters, read_stats, read_trace

DATA = Path(__file__).parent / "data" / "profilers"
KIB = 1024


def text(name: str) -> str:
    return (DATA / name).read_text()


TRACE = text("rocprofv3_kernel_trace.csv")
PASSES = [text(f"rocprofv3_pass{index}_counter_collection.csv") for index in range(3)]
ZEROS = text("rocprofv3_zero_counter_collection.csv")


def profile(*counted: str) -> Profile:
    return of(rocprof.launches(TRACE, counted, arch="gfx942", compute_units=304, peak_gbps=5300.0))


def of(launches: list[Launched]) -> Profile:
    return assemble(launches, rung="rocprofv3", workload="w", why="")


# --- reports ---------------------------------------------------------------------------------------------------


def test_the_grid_of_a_trace_is_in_work_items() -> None:
    assert read_trace(TRACE)[0].shape["grid_blocks"] == 1048576 / 256


def test_loader_decorations_are_not_part_of_a_kernels_name() -> None:
    assert read_trace(TRACE)[0].name == "row_softmax"
    assert read_stats(text("rocprof_results.stats.csv"))[0].name == "row_softmax(float*, float const*, int)"


def test_dispatches_of_one_kernel_add_up() -> None:
    seen = profile()
    assert seen.metrics["duration_us"] == 400.0
    assert [(kernel.owner, kernel.calls, kernel.share_pct) for kernel in seen.kernels] == [
        ("authored", 2, 90.91),
        ("framework", 2, 9.09),
    ]


def test_without_counters_there_is_no_traffic_rather_than_none_at_all() -> None:
    metrics = profile().metrics
    assert metrics["dram_bytes"] is None
    assert metrics["tensor_pct"] is None


def test_hbm_bytes_are_the_sizes_in_kib() -> None:
    metrics = profile(*PASSES).metrics
    expected = (262144 + 264192 + 2 * 262144) * KIB
    assert metrics["dram_bytes"] == expected
    assert metrics["dram_pct"] == pytest.approx(100 * expected / 400e-6 / 5300e9)


def test_the_long_layout_is_joined_over_passes() -> None:
    metrics = profile(*PASSES).metrics
    assert metrics["l2_hit_pct"] == 30.0
    assert metrics["bank_conflict_pct"] == 20.0
    assert metrics["stall_waitcnt_pct"] == 50.0
    assert metrics["stall_lds_pct"] == 10.0


def test_occupancy_takes_the_busy_cycles_of_one_of_eight_dies() -> None:
    assert profile(*PASSES).metrics["occupancy_pct"] == pytest.approx(400 * 389120000 / (320000 * 304 * 32))


def test_an_idle_matrix_unit_is_zero_while_its_block_counts() -> None:
    assert profile(*PASSES).metrics["tensor_pct"] == 0.0


def test_a_block_that_counts_nothing_is_unavailable_and_not_zero() -> None:
    assert read_counters([ZEROS])["row_softmax"] == {"VALUBusy": None, "VALUUtilization": None}
    assert profile(*PASSES, ZEROS).metrics["alu_pct"] is None


def test_registers_limit_the_occupancy_beyond_sixty_four() -> None:
    wide = TRACE.replace(",512,0,64,0,48,", ",512,0,96,8,48,")
    seen = of(rocprof.launches(wide, arch="gfx942"))
    assert seen.metrics["occupancy_theoretical_pct"] == 50.0
    assert seen.facts["occupancy_limiter"] == "registers"
    assert profile().metrics["occupancy_theoretical_pct"] == 100.0
    assert profile().facts["occupancy_limiter"] == "warps"


@pytest.mark.parametrize(("arch", "occupancy"), [("gfx942", 12.5), ("gfx950", 50.0)])
def test_lds_limits_the_occupancy_by_what_a_compute_unit_has(arch: str, occupancy: float) -> None:
    heavy = TRACE.replace(",512,0,64,0,48,", ",40960,0,64,0,48,")
    seen = of(rocprof.launches(heavy, arch=arch))
    assert seen.metrics["occupancy_theoretical_pct"] == occupancy
    assert seen.facts["occupancy_limiter"] == "shared_memory"


def test_columns_are_found_whatever_their_case() -> None:
    converted = TRACE.replace("LDS_Block_Size", "Lds_Block_Size").replace("VGPR_Count", "Vgpr_Count")
    assert read_trace(converted) == read_trace(TRACE)


def test_stats_of_either_tool_give_times_only() -> None:
    seen = of(rocprof.stats_launches(text("rocprof_results.stats.csv"), repeats=4))
    assert seen.metrics == {"duration_us": 220.0}
    newer = of(rocprof.launches(text("rocprofv3_kernel_stats.csv"), arch="gfx942"))
    assert [kernel.owner for kernel in newer.kernels] == ["authored", "vendor"]


# --- formulas --------------------------------------------------------------------------------------------------


def test_matrix_utilisation_is_over_the_simds_of_one_dies_cycles() -> None:
    counted = {"SQ_VALU_MFMA_BUSY_CYCLES": 304 * 4 * 500.0, "GRBM_GUI_ACTIVE": 8000.0}
    assert derive(counted, "gfx942", 304)["tensor_pct"] == 50.0
    assert derive(counted, "gfx942", None)["tensor_pct"] is None


def test_full_lanes_and_full_lines_read_as_such() -> None:
    counted = {
        "VALUUtilization": 100.0,
        "TA_TOTAL_WAVEFRONTS_sum": 4.0,
        "TCP_TOTAL_ACCESSES_sum": 64.0,
    }
    metrics = derive(counted, "gfx942", 304)
    assert metrics["divergence_lanes"] == 64.0
    assert metrics["coalescing_pct"] == 100.0


# --- commands and failures -------------------------------------------------------------------------------------


def test_commands_ask_for_csv_and_separate_the_target() -> None:
    line = " ".join(rocprof.trace_command("rocprofv3", ["python", "t.py"], "out"))
    assert "--kernel-trace --stats" in line
    assert "--output-format csv" in line
    assert line.endswith("-- python t.py")


def test_regions_need_their_markers_traced() -> None:
    line = " ".join(rocprof.trace_command("rocprofv3", ["t"], "out"))
    assert "--selected-regions --marker-trace" in line


def test_each_pass_is_a_run_of_its_own_within_the_hardwares_slots() -> None:
    lines = rocprof.counter_commands("rocprofv3", ["t"], "out", "gfx942")
    assert [line[line.index("-o") + 1] for line in lines] == [f"kopt_pass{index}" for index in range(4)]
    for one in passes("gfx942", full=True):
        assert sum(name.startswith("SQ_") for name in one) <= 8
        assert sum(name.startswith("TCC_") for name in one) + 2 * ("WRITE_SIZE" in one) <= 4


def test_parts_without_a_counter_set_are_traced_only() -> None:
    assert rocprof.counter_commands("rocprofv3", ["t"], "out", "gfx1100") == []


def test_the_legacy_tool_needs_no_separator() -> None:
    assert rocprof.stats_command("rocprof", ["t"], output="r.csv") == ["rocprof", "--stats", "-o", "r.csv", "t"]


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (
            "Device 0 could not be locked for profiling due to lack of permissions (capability SYS_PERFMON).",
            "permission",
        ),
        ("WARNING: Insufficient privileges for performance counter collection", "permission"),
        ("Unable to open /dev/kfd read-write: Permission denied", "permission"),
        ("error 38: ROCPROFILER_STATUS_ERROR_PROFILE_EXCEEDS_HW_LIMIT", "hardware"),
        ("Request exceeds the capabilities of the hardware to collect", "hardware"),
    ],
)
def test_each_failure_text_has_a_class_and_a_remedy(output: str, kind: str) -> None:
    found = rocprof.failure(output)
    assert found is not None
    assert (found.kind, found.text) == (kind, output)
    assert found.remedy


def test_output_without_a_known_reason_names_none() -> None:
    assert rocprof.failure("W20260101 tool initialised") is None
