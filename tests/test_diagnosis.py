"""The rules of the diagnosis: a real H200 profile, and made-up ones on both sides of every threshold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kopt_mcp.diagnosis import all_skill_names, diagnose
from kopt_mcp.diagnosis.ideas import MOST_IDEAS, table
from kopt_mcp.diagnosis.roofline import short_dtype
from kopt_mcp.models import Device, Diagnosis, KernelProfile, Owner, Peak, Profile, Rung, StaticKernel
from kopt_mcp.platforms import ncu
from kopt_mcp.platforms.ncu_report import parse
from kopt_mcp.platforms.reports import assemble

DATA = Path(__file__).parent / "data" / "profilers"
SOFTMAX = (DATA / "ncu_2025.3_h200_triton_softmax_raw_wide.csv").read_text()
SOFTMAX_BYTES = 2 * 32768 * 4096 * 2.0
SOFTMAX_FLOPS = 5 * 32768 * 4096.0

QUIET: dict[str, float | None] = {
    "duration_us": 100.0,
    "dram_pct": 30.0,
    "l2_pct": 32.0,
    "l1_pct": 20.0,
    "sm_pct": 30.0,
    "tensor_pct": 0.0,
    "fma_pct": 20.0,
    "alu_pct": 25.0,
    "xu_pct": 5.0,
    "issue_pct": 40.0,
    "grid_blocks": 4096.0,
    "block_threads": 256.0,
    "waves": 31.0,
    "occupancy_pct": 95.0,
    "occupancy_theoretical_pct": 100.0,
}
"""Counters of a kernel that does nothing wrong and keeps nothing busy."""


def peak(value: float, method: str = "measured") -> Peak:
    return Peak.model_validate({"value": value, "method": method, "source": "test", "confidence": "high"})


def device(**changes: Any) -> Device:
    h200 = {
        "platform": "nvidia",
        "index": 0,
        "name": "NVIDIA H200",
        "arch": "sm_90",
        "uuid": "GPU-1",
        "sm_count": 132,
        "bandwidth_gbps": peak(4800, "table"),
        "tflops": {"bf16": peak(989, "table"), "fp32": peak(67, "table"), "tf32": peak(494, "table")},
        "measured_gbps": peak(4000),
        "measured_tflops": {"bf16": peak(800)},
    }
    return Device.model_validate(h200 | changes)


CPU = device(
    platform="cpu",
    name="EPYC",
    arch="x86_64",
    sm_count=2,
    bandwidth_gbps=None,
    tflops={},
    measured_gbps=peak(19.0),
    measured_tflops={"fp32": peak(0.114)},
)
AMD = device(platform="amd", name="MI300X", arch="gfx942", sm_count=304)
UNKNOWN = device(bandwidth_gbps=None, tflops={}, measured_gbps=None, measured_tflops={})


def profile(rung: Rung = "ncu", facts: dict[str, str] | None = None, **metrics: Any) -> Profile:
    kernel = KernelProfile(name="k", owner="authored", calls=1, share_pct=100.0, metrics=metrics)
    return Profile(rung=rung, why="", workload="w", kernels=[kernel], metrics=metrics, facts=facts or {})


def counted(**changes: Any) -> Profile:
    return profile("ncu", None, **(QUIET | changes))


def timed(duration_us: float, **more: Any) -> Profile:
    return profile("timing", duration_us=duration_us, **more)


def judge(seen: Profile, on: Device | None = None, **changes: Any) -> Diagnosis:
    """By default: 100 MB in bf16 with little arithmetic, which the H200 could do in 25 µs."""
    work: dict[str, Any] = {"bytes_needed": 1e8, "flops": 1e8, "dtype": "bfloat16", "documented_bound": "memory"}
    return diagnose(seen, on or device(), **(work | changes))


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.name for finding in diagnosis.findings]


def static(**changes: Any) -> StaticKernel:
    plain = {
        "name": "k",
        "target": "sm_90",
        "registers": 32,
        "spills": 0,
        "shared_bytes": 0,
        "load_bytes": 16,
        "store_bytes": 16,
        "mma": None,
        "async_copy": None,
        "occupancy_pct": 100.0,
        "limiter": "warps",
        "grid": [4096, 1, 1],
        "block_threads": 256,
        "waves": 31.0,
    }
    return StaticKernel.model_validate(plain | changes)


# --- the real profile ------------------------------------------------------------------------------------------


def softmax_on_h200(**changes: Any) -> Diagnosis:
    seen = assemble(ncu.launches(parse(SOFTMAX)), rung="ncu", workload="32768x4096", why="counters are open")
    work: dict[str, Any] = {"bytes_needed": SOFTMAX_BYTES, "flops": SOFTMAX_FLOPS, "dtype": "bfloat16"}
    return diagnose(seen, device(measured_gbps=peak(4275)), **(work | {"documented_bound": "memory"} | changes))


def test_a_kernel_at_the_memory_roof_is_not_compute_bound_because_the_sm_is_64_percent_busy() -> None:
    found = softmax_on_h200()
    assert found.bound == "at_roof"
    assert found.source == "counters"
    assert {row.metric: row.value for row in found.evidence}["dram_pct"] == 84.5
    assert {row.metric: row.value for row in found.evidence}["alu_pct"] == 40.6
    assert not [row for row in found.evidence if row.metric == "sm_pct"]
    assert names(found) == []


def test_the_kernel_at_the_roof_is_told_to_stop_or_to_move_fewer_bytes() -> None:
    found = softmax_on_h200()
    assert found.stop.startswith("100 % of the measured copy rate")
    assert found.headroom_pct == pytest.approx(0.4, abs=0.1)
    assert found.tiers == [3, 2]
    assert found.ideas[0].id == "fuse-neighbours"
    assert found.read == ["skill://optimize-loop/SKILL.md"]


def test_the_roof_is_compared_with_the_benchmarks_time_where_it_is_given() -> None:
    seen = assemble(ncu.launches(parse(SOFTMAX)), rung="ncu", workload="w", why="")
    seen = seen.model_copy(update={"metrics": seen.metrics | {"latency_us": 150.0}})
    found = judge(seen, device(measured_gbps=peak(4275)), bytes_needed=SOFTMAX_BYTES, flops=SOFTMAX_FLOPS)
    assert found.stop == ""
    assert found.headroom_pct == pytest.approx(19.4, abs=0.1)


def test_equal_inputs_give_equal_answers() -> None:
    assert softmax_on_h200() == softmax_on_h200()


# --- the bound, with counters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({"dram_pct": 59.0}, "latency"),
        ({"dram_pct": 61.0}, "memory"),
        ({"dram_pct": 79.0}, "memory"),
        ({"dram_pct": 80.0}, "at_roof"),
        ({"fma_pct": 59.0}, "latency"),
        ({"fma_pct": 61.0}, "compute"),
        ({"xu_pct": 70.0}, "compute"),
        ({"sm_pct": 95.0}, "latency"),
        ({"dram_pct": 70.0, "tensor_pct": 61.0}, "balanced"),
        ({"dram_pct": 70.0, "tensor_pct": 59.0}, "memory"),
        ({"dram_pct": 70.0, "tensor_pct": 81.0}, "compute"),
        ({"l1_pct": 75.0}, "memory"),
        ({"dram_pct": 56.0, "l2_pct": 61.0}, "latency"),
        ({"dram_pct": 40.0, "l2_pct": 61.0}, "memory"),
        ({"issue_pct": 79.0}, "latency"),
        ({"issue_pct": 81.0}, "compute"),
    ],
)
def test_the_bound_follows_the_busiest_unit(changes: dict[str, float], bound: str) -> None:
    assert judge(counted(**changes)).bound == bound


@pytest.mark.parametrize(("moved", "bound"), [(1.15e8, "at_roof"), (1.3e8, "memory")])
def test_a_full_bus_is_the_roof_only_when_it_carries_what_is_needed(moved: float, bound: str) -> None:
    found = judge(counted(dram_pct=85.0, dram_bytes=moved))
    assert found.bound == bound
    assert ("redundant-traffic" in names(found)) == (bound == "memory")


@pytest.mark.parametrize(("moved", "bound"), [(3.55e8, "memory"), (3.65e8, "at_roof")])
def test_the_measured_copy_rate_is_a_roof_where_the_nominal_one_is_out_of_reach(moved: float, bound: str) -> None:
    assert judge(counted(dram_pct=75.0, dram_bytes=moved), bytes_needed=3.6e8).bound == bound


def test_operations_at_the_measured_matrix_rate_are_at_the_roof() -> None:
    seen = counted(tensor_pct=85.0, duration_us=1000.0)
    found = judge(seen, flops=0.97 * 800e6 * 1000, documented_bound="compute")
    assert found.bound == "at_roof"
    assert found.tiers == [3, 5]
    assert found.stop.startswith("97 % of the measured bf16 rate")
    assert judge(seen, flops=0.8 * 800e6 * 1000).bound == "compute"


@pytest.mark.parametrize(("bytes_per_sector", "bound"), [(15.0, "memory"), (17.0, "latency")])
def test_latency_on_wasted_sectors_is_the_memory_paths(bytes_per_sector: float, bound: str) -> None:
    assert judge(counted(bytes_per_sector_load=bytes_per_sector)).bound == bound


def test_without_the_bus_load_the_traffic_is_set_against_the_measured_rate() -> None:
    found = judge(counted(dram_pct=None, l2_pct=None, dram_bytes=2.8e8), bytes_needed=2.8e8)
    assert (found.bound, found.evidence[0].metric) == ("memory", "dram_measured_pct")


@pytest.mark.parametrize(("flops", "bound"), [(1e8, "balanced"), (1e12, "compute")])
def test_caches_that_feed_a_product_do_not_make_it_balanced(flops: float, bound: str) -> None:
    found = judge(counted(fma_pct=72.0, l1_pct=74.0, duration_us=2000.0), flops=flops)
    assert found.bound == bound
    assert judge(counted(fma_pct=72.0, dram_pct=74.0, duration_us=2000.0), flops=flops).bound == "balanced"
    assert judge(counted(fma_pct=62.0, l1_pct=74.0, duration_us=2000.0), flops=flops).bound == "memory"


def test_a_large_headroom_is_told_as_a_factor() -> None:
    assert "it would be 4.0 times as fast" in judge(counted()).summary
    assert "it would be 60 % faster" in judge(counted(duration_us=40.0)).summary


def test_missing_counters_are_not_read_as_idle() -> None:
    seen = counted(dram_pct=None, l1_pct=None, l2_pct=None, fma_pct=20.0)
    found = judge(seen, documented_bound="compute")
    assert found.bound == "compute"
    assert "own word" in found.summary


# --- the bound, without counters -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("duration_us", "bound"),
    [(26.0, "at_roof"), (27.5, "at_roof"), (28.0, "memory"), (41.0, "memory")],
)
def test_time_alone_is_judged_by_the_measured_roof(duration_us: float, bound: str) -> None:
    found = judge(timed(duration_us), documented_bound="latency")
    assert found.bound == bound
    assert found.source == "analytic"


def test_far_above_the_roof_the_documented_bound_decides_and_tuning_comes_first() -> None:
    found = judge(timed(200.0), documented_bound="compute")
    assert (found.bound, found.tiers) == ("compute", [1, 3, 5])
    assert [row.metric for row in found.evidence] == ["memory_roof_pct", "compute_roof_pct"]
    assert {idea.tier for idea in found.ideas[:2]} == {1}
    assert judge(timed(200.0), documented_bound="latency").tiers == [1, 4, 3]
    assert judge(timed(200.0), documented_bound="memory").tiers == [1, 2, 3]


def test_nominal_peaks_serve_where_nothing_was_measured() -> None:
    nominal = device(measured_gbps=None, measured_tflops={})
    found = judge(timed(25.5), nominal)
    assert found.bound == "at_roof"
    assert "nominal bandwidth" in found.summary
    assert judge(timed(26.5), nominal).bound == "memory"


def test_an_unknown_device_is_unclear_and_has_no_headroom() -> None:
    found = judge(timed(30.0), UNKNOWN)
    assert (found.bound, found.headroom_pct, found.stop) == ("unclear", None, "")
    assert found.tiers == [1, 2, 3]
    assert "skill://bottleneck-diagnosis/SKILL.md" in found.read


@pytest.mark.parametrize(("duration_us", "unclear"), [(22.0, True), (23.5, False)])
def test_faster_than_the_memory_allows_is_unclear(duration_us: float, unclear: bool) -> None:
    assert (judge(timed(duration_us)).bound == "unclear") == unclear


def test_a_product_in_tf32_may_beat_the_fp32_rate() -> None:
    on = device(measured_tflops={"fp32": peak(50), "tf32": peak(400)})
    found = judge(timed(1000.0), on, flops=300e9, dtype="float32", documented_bound="compute")
    assert found.bound == "compute"
    assert found.headroom_pct == pytest.approx(33.3, abs=0.1)


def test_without_any_time_the_compiler_and_the_problem_speak() -> None:
    found = judge(profile("static"), static=[static(spills=12)])
    assert (found.bound, found.source, found.headroom_pct) == ("memory", "static", None)
    assert names(found) == ["spills"]
    assert found.tiers[0] == 1


def test_without_a_documented_bound_the_roofline_has_to_do() -> None:
    untimed = profile("static")
    assert judge(untimed, documented_bound=None).bound == "memory"
    assert judge(untimed, documented_bound=None, flops=1e12).bound == "compute"
    assert judge(timed(200.0), documented_bound=None).bound == "latency"


def test_bytes_and_operations_that_need_the_same_time_are_balanced() -> None:
    found = judge(timed(35.0), flops=24.0 * 800e6, documented_bound="compute")
    assert (found.bound, found.tiers) == ("balanced", [1, 3, 2])


def test_a_kernel_that_the_compiler_did_not_see_takes_no_facts_from_another() -> None:
    assert names(judge(timed(200.0), static=[static(name="helper", spills=4)])) == []


def test_kernel_times_of_torch_count_together() -> None:
    kernels = [
        KernelProfile(name=name, owner="authored", calls=1, share_pct=50.0, metrics={"duration_us": 13.5})
        for name in ("a", "b")
    ]
    seen = Profile(rung="torch_profiler", why="", workload="w", kernels=kernels, metrics={"duration_us": 13.5})
    assert judge(seen).headroom_pct == pytest.approx(8.0)


def test_a_cpu_is_judged_by_its_measured_triad() -> None:
    softmax: dict[str, Any] = {"bytes_needed": 2.0**27, "flops": 5.0 * 2**24, "dtype": "float32"}
    naive = judge(timed(156e3), CPU, **softmax)
    assert naive.bound == "memory"
    assert "measured triad rate" in naive.summary
    assert all(tier <= 4 for tier in naive.tiers)
    assert judge(timed(7.2e3), CPU, **softmax).bound == "at_roof"


@pytest.mark.parametrize(("duration_us", "stops"), [(26.2, True), (26.5, False)])
def test_stopping_is_advised_from_95_percent_of_the_measured_roof(duration_us: float, stops: bool) -> None:
    assert bool(judge(timed(duration_us)).stop) == stops


# --- findings --------------------------------------------------------------------------------------------------

MATMUL: dict[str, Any] = {"bytes_needed": 1e8, "flops": 1e8 * 100}


@pytest.mark.parametrize(
    ("name", "firing", "quiet"),
    [
        ("launch-bound", {"duration_us": 9.0, "launch_us": 18.5}, {"duration_us": 9.0, "launch_us": 17.5}),
        ("launch-bound", {"duration_us": 9.9, "launch_us": 45.0}, {"duration_us": 10.1, "launch_us": 45.0}),
        ("small-grid", {"grid_blocks": 131.0}, {"grid_blocks": 132.0}),
        ("small-grid", {"waves": 0.9}, {"waves": 1.0}),
        ("small-grid", {"waves": 0.9}, {"waves": 0.9, "dram_pct": 70.0}),
        ("tail", {"waves": 4.2}, {"waves": 5.2}),
        ("tail", {"waves": 2.69}, {"waves": 2.71}),
        ("tail", {"waves": 1.1}, {"waves": 2.0}),
        ("spills", {"spill_bytes": 1.0}, {"spill_bytes": 0.0}),
        ("redundant-traffic", {"dram_bytes": 1.21e8}, {"dram_bytes": 1.19e8}),
        ("uncoalesced", {"bytes_per_sector_load": 23.0}, {"bytes_per_sector_load": 25.0}),
        ("uncoalesced", {"bytes_per_sector_store": 4.0}, {"bytes_per_sector_store": 32.0}),
        ("uncoalesced", {"coalescing_pct": 74.0}, {"coalescing_pct": 76.0}),
        ("narrow-access", {"load_bytes": 7.9}, {"load_bytes": 8.0}),
        ("narrow-access", {"load_bytes": 4.0}, {"load_bytes": 4.0, "dram_pct": 85.0}),
        ("bank-conflicts", {"bank_conflict_pct": 10.0}, {"bank_conflict_pct": 9.5}),
        ("low-occupancy", {"occupancy_theoretical_pct": 79.0}, {"occupancy_theoretical_pct": 80.0}),
        (
            "low-occupancy",
            {"occupancy_theoretical_pct": 25.0, "tensor_pct": 59.0},
            {"occupancy_theoretical_pct": 25.0, "tensor_pct": 61.0},
        ),
        ("imbalance", {"occupancy_pct": 89.0}, {"occupancy_pct": 91.0}),
        ("imbalance", {"occupancy_pct": 60.0}, {"occupancy_pct": 60.0, "tensor_pct": 61.0}),
        ("stall-long_scoreboard", {"stall_long_scoreboard_pct": 31.0}, {"stall_long_scoreboard_pct": 29.0}),
        (
            "stall-barrier",
            {"stall_barrier_pct": 40.0, "issue_pct": 79.0},
            {"stall_barrier_pct": 40.0, "issue_pct": 81.0},
        ),
        (
            "stall-barrier",
            {"stall_barrier_pct": 40.0, "stall_wait_pct": 35.0},
            {"stall_barrier_pct": 40.0, "stall_wait_pct": 45.0},
        ),
        ("divergence", {"divergence_lanes": 23.9}, {"divergence_lanes": 24.0}),
        ("fp64", {"fp64_pct": 16.0}, {"fp64_pct": 14.0}),
        ("special-functions", {"xu_pct": 60.0}, {"xu_pct": 59.0}),
        ("odd-block", {"block_threads": 250.0}, {"block_threads": 256.0}),
    ],
)
def test_each_rule_fires_on_its_side_of_the_threshold_only(
    name: str, firing: dict[str, float], quiet: dict[str, float]
) -> None:
    fired = judge(counted(**firing))
    assert name in names(fired)
    assert name not in names(judge(counted(**quiet)))
    assert [row for row in fired.evidence if row.source], "a finding shows its number"


@pytest.mark.parametrize(
    ("changes", "work", "fires"),
    [
        ({"tensor_pct": 4.9}, MATMUL, True),
        ({"tensor_pct": 5.1}, MATMUL, False),
        ({}, {**MATMUL, "flops": 15e8}, False),
        ({}, {**MATMUL, "flops": 17e8}, True),
        ({}, {**MATMUL, "dtype": "float64"}, False),
        ({}, {**MATMUL, "dtype": "float32"}, True),
        ({"tensor_pct": None}, MATMUL, False),
    ],
)
def test_idle_matrix_units_matter_for_products_only(
    changes: dict[str, float | None], work: dict[str, Any], fires: bool
) -> None:
    assert ("unused-tensor-cores" in names(judge(counted(**changes), **work))) == fires


def test_matrix_units_are_missed_only_where_they_exist() -> None:
    assert "unused-tensor-cores" not in names(judge(counted(), device(arch="sm_75"), **MATMUL))
    assert "unused-tensor-cores" in names(judge(counted(), device(arch="sm_75"), **MATMUL | {"dtype": "float16"}))
    assert "unused-tensor-cores" in names(judge(counted(), AMD, **MATMUL))


def test_the_compiler_says_which_matrix_instruction_is_missing_without_counters() -> None:
    slow = timed(500.0)
    assert "unused-tensor-cores" in names(judge(slow, static=[static()], **MATMUL))
    assert "unused-tensor-cores" not in names(judge(slow, static=[static(mma="wgmma")], **MATMUL))
    assert "unused-tensor-cores" not in names(judge(slow, **MATMUL))


@pytest.mark.parametrize(("dram_pct", "bound"), [(79.0, "latency"), (81.0, "at_roof")])
def test_a_launch_that_costs_more_than_the_kernel_is_latency_unless_the_device_is_at_its_roof(
    dram_pct: float, bound: str
) -> None:
    found = judge(counted(dram_pct=dram_pct, duration_us=8.0, launch_us=45.0), bytes_needed=2e7)
    assert found.bound == bound
    assert "launch-bound" in names(found)


def test_static_facts_fill_what_was_not_counted() -> None:
    found = judge(
        timed(200.0),
        static=[
            static(occupancy_pct=25.0, limiter="shared_memory", load_bytes=2, problems=["cannot launch: too much LDS"])
        ],
    )
    assert names(found) == ["compiler-problem", "narrow-access", "low-occupancy"]
    assert "limited by shared memory" in found.findings[2].text
    assert found.source == "static"


def test_counters_win_over_the_compiler() -> None:
    assert "spills" not in names(judge(counted(spill_bytes=0.0), static=[static(spills=4)]))


def test_a_small_compiled_grid_explains_the_time() -> None:
    found = judge(timed(200.0), static=[static(grid=[8, 1, 1], waves=0.01)])
    assert (found.bound, found.tiers) == ("latency", [1, 4, 3])
    assert names(found)[0] == "small-grid"


def test_gains_are_capped_by_what_the_busiest_unit_has_left() -> None:
    (finding,) = judge(counted(dram_pct=70.0, occupancy_theoretical_pct=50.0)).findings[:1]
    assert (finding.name, finding.gain_pct) == ("low-occupancy", 30.0)


def test_waiting_is_no_finding_at_the_roof() -> None:
    assert names(judge(counted(dram_pct=85.0, stall_long_scoreboard_pct=60.0))) == []


def two_kernels(owner: Owner, share: float) -> Profile:
    metrics = dict(QUIET)
    kernels = [
        KernelProfile(name="k", owner="authored", calls=1, share_pct=100 - share, metrics=metrics),
        KernelProfile(name="other", owner=owner, calls=1, share_pct=share, metrics=metrics),
    ]
    return Profile(rung="ncu", why="", workload="w", kernels=kernels, metrics=metrics)


@pytest.mark.parametrize(
    ("owner", "share", "name", "fires"),
    [
        ("vendor", 11.0, "vendor-library", True),
        ("vendor", 9.0, "vendor-library", False),
        ("framework", 11.0, "framework-kernels", True),
        ("authored", 11.0, "vendor-library", False),
        ("authored", 21.0, "many-kernels", True),
        ("authored", 19.0, "many-kernels", False),
    ],
)
def test_whose_kernels_take_the_time_is_said(owner: Owner, share: float, name: str, fires: bool) -> None:
    assert (name in names(judge(two_kernels(owner, share)))) == fires


def test_amd_lanes_are_counted_in_waves_of_sixty_four() -> None:
    assert "divergence" in names(judge(counted(divergence_lanes=47.0), AMD))
    assert "divergence" not in names(judge(counted(divergence_lanes=49.0), AMD))


def test_a_cpu_has_no_grid_and_no_launch() -> None:
    assert names(judge(timed(9.0, launch_us=90.0, grid_blocks=1.0, block_threads=1.0), CPU)) == []


def test_the_cpu_compilers_report_is_a_finding() -> None:
    seen = profile("timing", facts={"not_vectorized": "softmax.c:12, the maximum"}, duration_us=1e5)
    assert names(judge(seen, CPU)) == ["not-vectorised"]


def test_where_nothing_was_counted_the_order_of_ideas_is_explained_beside_that_of_tiers() -> None:
    seen = profile("timing", facts={"not_vectorized": "softmax.c:12, the maximum"}, duration_us=1e5)
    found, plain = judge(seen, CPU), judge(profile("timing", duration_us=1e5), CPU)
    assert (found.tiers[0], found.ideas[0].tier) == (1, 2)
    assert found.summary.endswith("since tuning is always safe. Ideas for what was seen come before that.")
    assert (plain.tiers[0], plain.ideas[0].tier) == (1, 1)
    assert plain.summary.endswith("since tuning is always safe.")


def test_a_lowered_clock_is_named_in_the_summary() -> None:
    assert "measure again" in judge(counted(), device(throttle=["thermal"])).summary
    assert "measure again" not in judge(counted()).summary


# --- tiers, ideas, reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "tiers"),
    [
        ({"dram_pct": 70.0}, [2, 1, 3]),
        ({"fma_pct": 70.0}, [3, 1, 5]),
        ({}, [4, 3]),
        ({"dram_pct": 85.0}, [3, 2]),
        ({"dram_pct": 70.0, "spill_bytes": 64.0}, [1, 2, 3]),
        ({"spill_bytes": 64.0}, [1, 4, 3]),
        ({"bytes_per_sector_load": 20.0}, [2, 4, 3]),
        ({"dram_pct": 70.0, "occupancy_theoretical_pct": 50.0}, [2, 1, 3, 4]),
        ({"dram_pct": 85.0, "occupancy_theoretical_pct": 50.0}, [3, 2]),
    ],
)
def test_tiers_follow_the_bound_and_its_strongest_cause(changes: dict[str, float], tiers: list[int]) -> None:
    assert judge(counted(**changes)).tiers == tiers


def test_ideas_for_the_cause_come_before_those_for_the_bound() -> None:
    found = judge(counted(dram_pct=70.0, bytes_per_sector_load=8.0))
    assert found.ideas[0].id == "coalesce"
    assert found.ideas[0].skill == "tier2-memory-access"
    assert len(found.ideas) <= MOST_IDEAS


def test_tried_ideas_are_not_offered_again() -> None:
    seen = counted(dram_pct=70.0)
    first = judge(seen).ideas[0]
    again = judge(seen, tried={(first.tier, first.id)}).ideas
    assert first.id not in [idea.id for idea in again]
    every = {(entry.tier, entry.id) for entry in table()}
    assert judge(seen, tried=every).ideas == []


ALL = {"memory", "compute", "latency", "balanced", "at_roof", "unclear"}
BUSY: dict[str, dict[str, float | None]] = {
    "memory": {"dram_pct": 70.0},
    "compute": {"fma_pct": 70.0},
    "latency": {},
    "balanced": {"dram_pct": 70.0, "fma_pct": 70.0},
    "at_roof": {"dram_pct": 85.0},
}


def offered(on: Device, *, is_triton: bool = True) -> set[str]:
    """Everything offered on a device over all bounds, each batch marked as tried until none is left."""
    seen: set[tuple[int, str]] = set()
    for changes in BUSY.values():
        while new := judge(counted(**changes), on, tried=seen, is_triton=is_triton, bytes_needed=1e5).ideas:
            seen |= {(idea.tier, idea.id) for idea in new}
    return {name for _, name in seen}


def test_no_platform_is_offered_anothers_ideas() -> None:
    nvidia, amd, cpu = offered(device()), offered(AMD), offered(CPU)
    assert {"warpgroup-mma", "eviction-policy"} <= nvidia
    assert {"xcd-remap", "waves-per-eu"} <= amd
    assert {"cache-block", "polynomial-exp", "streaming-stores-cpu", "fewer-passes", "thread-count"} <= cpu
    assert not nvidia & {"xcd-remap", "waves-per-eu", "mfma-shape", "cache-block"}
    assert not amd & {"warpgroup-mma", "tensor-descriptors", "eviction-policy", "maxnreg", "async-copy", "fp8"}
    assert not cpu & (nvidia | amd)


def test_no_architecture_is_offered_a_later_ones_features() -> None:
    assert "async-copy" in offered(device(arch="sm_80"))
    assert not offered(device(arch="sm_80")) & {"warpgroup-mma", "tensor-descriptors", "tensor-memory-mma", "fp8"}
    assert "tensor-memory-mma" in offered(device(arch="sm_100"))
    assert not offered(device(arch="sm_120")) & {"tensor-memory-mma", "warpgroup-mma"}
    assert "direct-to-lds" not in offered(AMD)


def test_each_language_has_its_own_knobs() -> None:
    assert not offered(device(), is_triton=False) & {"num-warps", "num-stages", "vector-width", "use-dot"}
    assert not offered(device(), is_triton=True) & {"block-dim", "launch-bounds", "vector-types", "use-mma"}


FINDINGS = {
    *("compiler-problem", "launch-bound", "small-grid", "tail", "spills", "unused-tensor-cores", "redundant-traffic"),
    *("uncoalesced", "not-vectorised", "narrow-access", "bank-conflicts", "fp64", "special-functions"),
    *("low-occupancy", "imbalance", "divergence", "odd-block", "vendor-library", "framework-kernels", "many-kernels"),
}


def test_the_table_of_ideas_names_only_bounds_and_findings_that_exist() -> None:
    assert len({(entry.tier, entry.id) for entry in table()}) == len(table())
    for entry in table():
        assert entry.when
        assert {name for name in entry.when if not name.startswith("stall-")} <= ALL | FINDINGS
        assert entry.language in ("", "triton", "cuda")


def test_every_finding_has_an_idea() -> None:
    wanted = {name for entry in table() for name in entry.when}
    assert wanted >= FINDINGS


def test_what_to_read_is_a_skill_that_is_known() -> None:
    known = {f"skill://{name}/SKILL.md" for name in all_skill_names()}
    for on in (device(), AMD, CPU, UNKNOWN):
        for changes in BUSY.values():
            found = judge(counted(**changes), on)
            assert found.read
            assert set(found.read) <= known
            assert {idea.skill for idea in found.ideas} <= all_skill_names()


def test_the_compute_bound_reader_is_sent_to_the_skill_of_the_first_tier() -> None:
    assert judge(counted(fma_pct=70.0)).read[0] == "skill://tier3-compute-fusion/SKILL.md"


@pytest.mark.parametrize(
    ("name", "short"),
    [("torch.bfloat16", "bf16"), ("float32", "fp32"), ("float8_e4m3fn", "fp8"), ("fp16", "fp16"), ("int8", "int8")],
)
def test_dtypes_have_one_short_name(name: str, short: str) -> None:
    assert short_dtype(name) == short
