"""rocprofv3 and the older `rocprof --stats`: command lines, CSV reports and failures; nothing here runs them.

Not run on hardware: layouts and counter definitions follow AMD's public documentation and samples, the formulas those
of rocprofiler-sdk and rocprof-compute for gfx90a, gfx942 and gfx950. Treat numbers from here with that in mind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kopt_mcp.platforms import rocprof_counters as counters
from kopt_mcp.platforms.reports import Failure, FailureText, Launched, find_failure, ratio
from kopt_mcp.platforms.rocprof_report import Kernel, read_counters, read_stats, read_trace

FAILURES = (
    FailureText(
        "permission",
        (
            "could not be locked for profiling due to lack of permissions",
            "Insufficient privileges for performance counter collection",
        ),
        "Counters need CAP_PERFMON or CAP_SYS_ADMIN, or kernel.perf_event_paranoid of at most 2.",
    ),
    FailureText(
        "permission",
        ("Unable to open /dev/kfd read-write",),
        "The user must be in the groups render and video, and a container needs --device /dev/kfd --device /dev/dri.",
    ),
    FailureText(
        "hardware",
        ("EXCEEDS_HW_LIMIT", "exceeds the capabilities of the hardware to collect"),
        "These counters do not fit one pass, or the device is a virtual function without counters. Ask for fewer.",
    ),
)
NO_KERNELS = Failure(
    "no_kernels",
    "the report holds no kernel",
    "Check that the call launches a kernel, that a name filter fits, and that --output-format csv was given.",
)


def trace_command(rocprofv3: str, target: Sequence[str], directory: str) -> list[str]:
    """Durations and launch shapes: writes `kopt_kernel_trace.csv` and `kopt_kernel_stats.csv` under `directory`."""
    return _command(rocprofv3, ["--kernel-trace", "--stats"], target, directory, "kopt")


def counter_commands(
    rocprofv3: str, target: Sequence[str], directory: str, arch: str, *, full: bool = False
) -> list[list[str]]:
    """One command a pass, since the hardware counts only a few things at once; empty where the arch has no set.

    Each pass runs the target again and writes `kopt_pass<i>_counter_collection.csv` under `directory`.
    """
    return [
        _command(rocprofv3, ["--pmc", *passed], target, directory, f"kopt_pass{index}")
        for index, passed in enumerate(counters.passes(arch, full=full))
    ]


def _command(rocprofv3: str, what: list[str], target: Sequence[str], directory: str, name: str) -> list[str]:
    # Only between the target's roctxProfilerResume and roctxProfilerPause, which are honoured only while markers are
    # traced. Newer versions write a database unless told otherwise.
    regions = ("--selected-regions", "--marker-trace")
    return [rocprofv3, *what, *regions, "--output-format", "csv", "-d", directory, "-o", name, "--", *target]


def stats_command(rocprof: str, target: Sequence[str], *, output: str) -> list[str]:
    """The legacy tool's kernel times, for machines that have nothing newer: writes `<output stem>.stats.csv`."""
    return [rocprof, "--stats", "-o", output, *target]


def failure(output: str) -> Failure | None:
    """Why a run gave nothing, from all that the tool printed; None if it names no reason known here."""
    return find_failure(output, FAILURES)


def launches(
    trace: str,
    counter_reports: Sequence[str] = (),
    *,
    arch: str,
    compute_units: int | None = None,
    peak_gbps: float | None = None,
) -> list[Launched]:
    """The kernels of a trace (or of kernel stats) of one call, with what the counter files of all passes say of them.

    `compute_units` and `peak_gbps` (nominal, 1e9 bytes/s) belong to the device; without them the percentages that need
    them are null.
    """
    counted = read_counters(counter_reports)
    return [
        Launched(
            kernel.name,
            _metrics(kernel, counted.get(kernel.name, {}), arch, compute_units, peak_gbps),
            {"occupancy_limiter": resident.limiter} if (resident := counters.resident_groups(kernel, arch)) else {},
            kernel.calls,
        )
        for kernel in read_trace(trace) or read_stats(trace)
    ]


def stats_launches(stats: str, repeats: int) -> list[Launched]:
    """The kernel times of a stats file of either tool, which covers `repeats` calls of the candidate."""
    return [
        Launched(
            kernel.name,
            {"duration_us": kernel.total_ns / 1e3 / repeats},
            calls=max(1, round(kernel.calls / repeats)),
        )
        for kernel in read_stats(stats)
    ]


def _metrics(
    kernel: Kernel,
    counted: Mapping[str, float | None],
    arch: str,
    compute_units: int | None,
    peak_gbps: float | None,
) -> dict[str, float | None]:
    duration_us = kernel.total_ns / 1e3
    derived = counters.derive(counted, arch, compute_units)
    dram_bytes = ratio(derived.pop("hbm_bytes_per_launch"), 1.0, kernel.calls)
    gbps = ratio(dram_bytes, duration_us, 1e-3)
    return {
        "duration_us": duration_us,
        "dram_bytes": dram_bytes,
        "dram_pct": ratio(gbps, peak_gbps, 100.0),
        **counters.launch_metrics(kernel, arch, compute_units),
        **derived,
    }
