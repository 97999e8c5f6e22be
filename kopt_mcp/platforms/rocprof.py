"""rocprofv3 and the older `rocprof --stats`: command lines, CSV reports and failures; nothing here runs them.

Not run on hardware: layouts and counter definitions follow AMD's public documentation and samples, the formulas those
of rocprofiler-sdk and rocprof-compute for gfx90a, gfx942 and gfx950. Treat numbers from here with that in mind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from kopt_mcp.models import Profile
from kopt_mcp.platforms import rocprof_counters as counters
from kopt_mcp.platforms.reports import Failure, FailureText, Launch, assemble, find_failure, raise_failure, ratio
from kopt_mcp.platforms.rocprof_report import Kernel, read_counters, read_stats, read_trace

FAILURES = (
    FailureText(
        "permission",
        "could not be locked for profiling due to lack of permissions",
        "Counters need CAP_PERFMON or CAP_SYS_ADMIN, or kernel.perf_event_paranoid of at most 2.",
    ),
    FailureText(
        "permission",
        "Insufficient privileges for performance counter collection",
        "Counters need CAP_PERFMON or CAP_SYS_ADMIN, or kernel.perf_event_paranoid of at most 2.",
    ),
    FailureText(
        "permission",
        "Unable to open /dev/kfd read-write",
        "The user must be in the groups render and video, and a container needs --device /dev/kfd --device /dev/dri.",
    ),
    FailureText(
        "hardware",
        "EXCEEDS_HW_LIMIT",
        "These counters do not fit one pass, or the device is a virtual function without counters. Ask for fewer.",
    ),
    FailureText(
        "hardware",
        "exceeds the capabilities of the hardware to collect",
        "These counters do not fit one pass, or the device is a virtual function without counters. Ask for fewer.",
    ),
)


def trace_command(
    rocprofv3: str,
    target: Sequence[str],
    *,
    directory: str,
    name: str = "kopt",
    kernels: str = "",
    regions: bool = False,
) -> list[str]:
    """Durations and launch shapes: writes `<name>_kernel_trace.csv` and `<name>_kernel_stats.csv` under `directory`.

    `kernels`: a regular expression that kernel names must match. `regions`: record only between the target's
    roctxProfilerResume and roctxProfilerPause.
    """
    return [
        rocprofv3,
        *("--kernel-trace", "--stats"),
        *_selection(kernels, regions),
        *_output(directory, name),
        "--",
        *target,
    ]


def counter_commands(
    rocprofv3: str,
    target: Sequence[str],
    *,
    arch: str,
    directory: str,
    name: str = "kopt",
    kernels: str = "",
    regions: bool = False,
    full: bool = False,
) -> list[list[str]]:
    """One command a pass, since the hardware counts only a few things at once; empty where the arch has no set.

    Each pass runs the target again and writes `<name>_pass<i>_counter_collection.csv` under `directory`.
    """
    return [
        [
            rocprofv3,
            *("--pmc", *passed),
            *_selection(kernels, regions),
            *_output(directory, f"{name}_pass{index}"),
            "--",
            *target,
        ]
        for index, passed in enumerate(counters.passes(arch, full=full))
    ]


def stats_command(rocprof: str, target: Sequence[str], *, output: str) -> list[str]:
    """The legacy tool's kernel times, for machines that have nothing newer: writes `<output stem>.stats.csv`."""
    return [rocprof, "--stats", "-o", output, *target]


def failure(output: str) -> Failure | None:
    """Why a run gave nothing, from all that the tool printed; None if it names no reason known here."""
    return find_failure(output, FAILURES)


def to_profile(
    trace: str,
    counter_reports: Sequence[str] = (),
    *,
    arch: str,
    workload: str,
    why: str,
    authored: Collection[str] = (),
    repeats: int = 1,
    compute_units: int | None = None,
    peak_gbps: float | None = None,
    tool_version: str = "",
    launch_us: float | None = None,
    artifacts: Sequence[str] = (),
    output: str = "",
) -> Profile:
    """A profile from a kernel trace (or kernel stats) and the counter files of any number of passes.

    `repeats`: calls of the candidate that each report covers. `compute_units` and `peak_gbps` (nominal, 1e9 bytes/s)
    belong to the device; without them the percentages that need them are null. Raises `ToolUnavailable`, with
    the reason that `output` names, when no kernel was recorded.
    """
    kernels = read_trace(trace) or read_stats(trace)
    if not kernels:
        raise_failure("rocprofv3", failure(output) or _no_kernels())
    counted = read_counters(counter_reports)
    launches = [
        Launch(
            kernel.name,
            _metrics(kernel, counted.get(kernel.name, {}), arch, repeats, compute_units, peak_gbps),
            counters.launch_facts(kernel, arch),
            max(1, round(kernel.calls / repeats)),
        )
        for kernel in kernels
    ]
    return assemble(
        launches,
        rung="rocprofv3",
        workload=workload,
        why=why,
        authored=authored,
        launch_us=launch_us,
        facts={"tool_version": tool_version} if tool_version else {},
        artifacts=artifacts,
    )


def stats_to_profile(
    stats: str,
    *,
    workload: str,
    why: str,
    rung: Literal["rocprof", "rocprofv3"] = "rocprof",
    authored: Collection[str] = (),
    repeats: int = 1,
    artifacts: Sequence[str] = (),
    output: str = "",
) -> Profile:
    """A profile of kernel times only, from a stats file of either tool. Raises `ToolUnavailable` when it is empty."""
    kernels = read_stats(stats)
    if not kernels:
        raise_failure(rung, failure(output) or _no_kernels())
    launches = [
        Launch(
            kernel.name,
            {"duration_us": kernel.total_ns / 1e3 / repeats},
            calls=max(1, round(kernel.calls / repeats)),
        )
        for kernel in kernels
    ]
    return assemble(launches, rung=rung, workload=workload, why=why, authored=authored, artifacts=artifacts)


def _no_kernels() -> Failure:
    remedy = "Check that the call launches a kernel, that a name filter fits, and that --output-format csv was given."
    return Failure("no_kernels", "the report holds no kernel", remedy)


def _selection(kernels: str, regions: bool) -> tuple[str, ...]:
    # Regions are honoured only while markers are traced.
    marked = ("--selected-regions", "--marker-trace") if regions else ()
    return marked + (("--kernel-include-regex", kernels) if kernels else ())


def _output(directory: str, name: str) -> tuple[str, ...]:
    # Newer versions write a database unless told otherwise.
    return ("--output-format", "csv", "-d", directory, "-o", name)


def _metrics(
    kernel: Kernel,
    counted: Mapping[str, float | None],
    arch: str,
    repeats: int,
    compute_units: int | None,
    peak_gbps: float | None,
) -> dict[str, float | None]:
    duration_us = kernel.total_ns / 1e3 / repeats
    derived = counters.derive(counted, arch, compute_units)
    dram_bytes = ratio(derived.pop("hbm_bytes_per_launch"), 1.0, kernel.calls / repeats)
    gbps = ratio(dram_bytes, duration_us, 1e-3)
    return {
        "duration_us": duration_us,
        "dram_bytes": dram_bytes,
        "dram_pct": ratio(gbps, peak_gbps, 100.0),
        **counters.launch_metrics(kernel, arch, compute_units),
        **derived,
    }
