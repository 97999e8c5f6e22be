"""Nsight Compute's metric names by compute capability, and the failures that its output names.

Names follow the section files that ship with Nsight Compute 2025.3; those of cc 9.0 were seen on an H200.
"""

from __future__ import annotations

from kopt_mcp.platforms.reports import FailureText

ELAPSED = ".avg.pct_of_peak_sustained_elapsed"

DURATION = "gpu__time_duration.sum"
DRAM_READ = "dram__bytes_read.sum"
DRAM_WRITE = "dram__bytes_write.sum"
WARP_LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
LOAD_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
STORE_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
STORE_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
LOAD_BYTES_PER_SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
STORE_BYTES_PER_SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio"
LOCAL_SECTORS = tuple(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st"))
BANK_CONFLICTS = tuple(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st"))
WAVEFRONTS = tuple(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ("ld", "st"))
SHARED_MEMORY = tuple(f"launch__shared_mem_per_block_{kind}" for kind in ("static", "dynamic"))
WARPGROUP_MMA = "sm__inst_executed_pipe_tensor_op_gmma" + ELAPSED

DIRECT = {
    "dram_pct": "gpu__dram_throughput" + ELAPSED,
    "l2_pct": "lts__throughput" + ELAPSED,
    "l1_pct": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "sm_pct": "sm__throughput" + ELAPSED,
    "fma_pct": "sm__pipe_fma_cycles_active" + ELAPSED,
    "alu_pct": "sm__pipe_alu_cycles_active" + ELAPSED,
    "lsu_pct": "sm__inst_executed_pipe_lsu" + ELAPSED,
    "xu_pct": "sm__inst_executed_pipe_xu" + ELAPSED,
    "fp64_pct": "sm__pipe_fp64_cycles_active" + ELAPSED,
    "issue_pct": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "occupancy_theoretical_pct": "sm__maximum_warps_per_active_cycle_pct",
    "waves": "launch__waves_per_multiprocessor",
    "grid_blocks": "launch__grid_size",
    "block_threads": "launch__block_size",
    "registers": "launch__registers_per_thread",
    "l1_hit_pct": "l1tex__t_sector_hit_rate.pct",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "divergence_lanes": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
}
"""Neutral name → the ncu metric that has the same unit (bytes, percent, counts)."""

STALLS = (
    *("barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard"),
    *("math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "short_scoreboard"),
    *("sleeping", "tex_throttle", "wait"),
)

LIMITERS = {
    "warps": "launch__occupancy_limit_warps",
    "registers": "launch__occupancy_limit_registers",
    "shared_memory": "launch__occupancy_limit_shared_mem",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
"""In the order that settles ties: at the warp limit nothing is lost."""

TENSOR_PIPES: tuple[tuple[int, int, tuple[str, ...]], ...] = tuple(
    (first, last, tuple(f"sm__pipe_{pipe}{ELAPSED}" for pipe in pipes))
    for first, last, pipes in (
        (70, 88, ("tensor_cycles_active", "tensor_op_hmma_cycles_active", "tensor_op_imma_cycles_active")),
        (89, 89, ("tensor_cycles_active_v2", "tensor_op_hmma_cycles_active")),
        (
            *(90, 99),
            ("tensor_cycles_active", *(f"tensor_op_{kind}_cycles_active" for kind in ("hmma", "imma", "dmma"))),
        ),
        (
            *(100, 999),
            ("tensor_subpipe_hmma_cycles_active", "tensor_subpipe_imma_cycles_active", "tc_cycles_active"),
        ),
    )
)
"""First and last compute capability × 10, and the tensor pipes there; the busiest is the tensor utilisation."""

FAILURES = (
    FailureText(
        "permission",
        ("ERR_NVGPUCTRPERM",),
        "The driver lets only administrators read counters. Set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia "
        "module, give the container --cap-add SYS_ADMIN, or run as root; rented machines often allow none of these.",
    ),
    FailureText(
        "busy",
        ("driver resource was unavailable",),
        "Another profiler or DCGM holds the counters. Stop it, or pause DCGM with `dcgmi profile --pause`.",
    ),
    FailureText(
        "metric",
        ("Failed to find metric",),
        "This version of ncu does not know the metric. Repeat the run without it.",
    ),
    FailureText(
        "version",
        ("driver is not compatible with Nsight Compute", "Failed to load Nsight Compute CUDA modules"),
        "ncu is newer than the driver. Use the ncu of the driver's CUDA version, or update the driver.",
    ),
    FailureText(
        "version",
        ("NV_INJ_ERROR_NOT_INITIALIZED",),
        "The profiler was loaded after CUDA. Load it before the first CUDA call of the process.",
    ),
    FailureText(
        "version",
        ("Failed to prepare kernel for profiling",),
        "Not a permission: ncu and the process use different CUDA versions. Try the ncu of the CUDA that torch uses.",
    ),
    FailureText(
        "resources",
        ("LaunchFailed",),
        "The replayed launch failed. Take a smaller workload or fewer metrics, or use --replay-mode application.",
    ),
    FailureText(
        "resources",
        ("Received signal",),
        "The process was killed while it was replayed. Take a smaller workload or fewer metrics.",
    ),
    FailureText(
        "target",
        ("application returned an error code",),
        "The profiled program failed by itself. Run it without ncu and read its output.",
    ),
    FailureText(
        "resources",
        ("Failed to profile", "error occurred while trying to profile"),
        "Read the error before this line. Take a smaller workload, fewer metrics, or --replay-mode application.",
    ),
    FailureText(
        "wrong_process",
        ("terminated before first instrumented API call",),
        "The process that ncu watched never used CUDA. Profile its children with --target-processes all.",
    ),
    FailureText(
        "wrong_process",
        ("requires the --target-processes all option",),
        "The kernels run in a child process. Repeat with --target-processes all.",
    ),
    FailureText(
        "no_kernels",
        ("No kernels were profiled",),
        "No launch fell between cudaProfilerStart and cudaProfilerStop: check that the call launches a kernel there, "
        "that it did not fail before, and that a name filter fits.",
    ),
)
"""Searched in order: what explains a failure comes before the line that merely states it."""
