"""Nsight Compute: command lines, reports and failures; nothing here runs it.

The profiled program calls cudaProfilerStart and cudaProfilerStop around one warm call of the candidate, so that
neither warm-up, autotuning nor the reference is recorded. Clocks are left alone and caches flushed before each pass:
the conditions of a benchmark with cold caches, so that durations compare with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kopt_mcp.platforms import ncu_metrics as names
from kopt_mcp.platforms.ncu_report import Result
from kopt_mcp.platforms.reports import Failure, Launched, find_failure, ratio, total

MOST_LAUNCHES = 200
"""Recorded of one call: each launch is replayed about a dozen times."""
SECTOR_BYTES = 32
WARP_LANES = 32

UNKNOWN_METRIC = re.compile(r"Failed to find metric\s+(?:regex:)?\^?([\w.\\]+)")
AVAILABLE_KERNELS = re.compile(r"Available Kernels:\s*\n((?:\s*\d+\.\s.*\n?|\s+\S.*\n?)+)")


def metrics_for(arch: str) -> list[str]:
    """The quick set for an architecture such as `sm_90`: about a dozen passes, seconds for one launch."""
    local = [*names.LOCAL_SECTORS, *names.BANK_CONFLICTS, *names.WAVEFRONTS, *names.SHARED_MEMORY]
    access = [names.LOAD_SECTORS, names.LOAD_REQUESTS, names.STORE_SECTORS, names.STORE_REQUESTS]
    sectors = [names.LOAD_BYTES_PER_SECTOR, names.STORE_BYTES_PER_SECTOR]
    stalls = [names.WARP_LATENCY, *(names.STALL.format(reason) for reason in names.STALLS)]
    digits = re.search(r"\d+", arch)
    capability = int(digits[0]) if digits else 0
    tensor = [metric for first, last, pipes in names.TENSOR_PIPES if first <= capability <= last for metric in pipes]
    if 90 <= capability < 100:
        tensor.append(names.WARPGROUP_MMA)
        stalls.append(names.STALL.format("gmma"))
    memory = [names.DURATION, names.DRAM_READ, names.DRAM_WRITE]
    return [*memory, *names.DIRECT.values(), *tensor, *names.LIMITERS.values(), *local, *access, *sectors, *stalls]


def command(ncu: str, target: Sequence[str], *, log_file: str, metrics: Sequence[str], export: str = "") -> list[str]:
    """The command that profiles `target` and writes its CSV to `log_file`.

    `metrics`: what `metrics_for` or `without_unknown` gave. `export`: add every section of ncu's own full set (about
    forty passes, ten seconds or more a launch), and write a report file of this name (ncu appends `.ncu-rep`) instead
    of the CSV; `import_command` reads it.
    """
    output = ("--csv", "--page", "raw", "--print-units", "base")
    return [
        ncu,
        *("--target-processes", "all"),
        *("--profile-from-start", "off"),
        *("--clock-control", "none"),
        *("--cache-control", "all"),
        *("--launch-count", str(MOST_LAUNCHES)),
        *("--metrics", ",".join(metrics)),
        *(("--set", "full", "--force-overwrite", "--export", export) if export else output),
        *("--log-file", log_file),
        *target,
    ]


def import_command(ncu: str, report: str, *, page: str, csv: bool) -> list[str]:
    """Print one page (`raw`, or `details` with what ncu's rules say) of a report file; needs no GPU."""
    return [ncu, "--import", report, "--page", page, "--print-units", "base", *(("--csv",) if csv else ())]


def without_unknown(metrics: Sequence[str], output: str) -> list[str] | None:
    """The metrics left when those that this ncu refuses are dropped; None when it refused none, or all."""
    refused = {found.replace("\\", "").strip(".") for found in UNKNOWN_METRIC.findall(output)}
    left = [metric for metric in metrics if not any(metric == one or metric.startswith(one + ".") for one in refused)]
    return left if 0 < len(left) < len(metrics) else None


def failure(output: str) -> Failure | None:
    """Why a run gave nothing, from all that ncu printed: log file, standard output and error. None if it names none."""
    found = find_failure(output, names.FAILURES)
    listed = AVAILABLE_KERNELS.search(output)
    if found and found.kind == "no_kernels" and listed:
        kernels = ", ".join(line.strip() for line in listed[1].splitlines() if line.strip())
        return Failure(found.kind, found.text, f"{found.remedy} ncu saw these kernels: {kernels}.")
    return found


def counted(results: Sequence[Result]) -> bool:
    """Whether counters came back; an exit status of 0 says nothing, and what a launch asks for needs no counter."""
    return any(
        value is not None
        for result in results
        for name, value in result.values.items()
        if not name.startswith(("launch__", "device__"))
    )


def launches(results: Sequence[Result]) -> list[Launched]:
    """The recorded launches under vendor-neutral names."""
    return [Launched(result.kernel, _neutral(result), _facts(result)) for result in results]


NO_KERNELS_REMEDY = names.FAILURES[-1].remedy
TARGET_REMEDY = "Correct that first; verify says more."
TIMED_OUT = Failure(
    "resources",
    "the profiler did not end in time",
    "Replay saves and restores memory for each pass: take a smaller workload or fewer metrics; kernels that wait for "
    "one another need --replay-mode application.",
)
"""For a caller that had to end a run: ncu itself prints nothing then."""


def _neutral(result: Result) -> dict[str, float | None]:
    def value(*metrics: str) -> float | None:
        return total(*(result.values.get(metric) for metric in metrics))

    read, written = value(names.DRAM_READ), value(names.DRAM_WRITE)
    # No access through the load-store unit reads 0 bytes a sector: nothing to judge, not a bad pattern.
    load, store = value(names.LOAD_BYTES_PER_SECTOR) or None, value(names.STORE_BYTES_PER_SECTOR) or None
    return {
        **{name: value(metric) for name, metric in names.DIRECT.items()},
        "duration_us": ratio(value(names.DURATION), 1e3),
        "dram_bytes": None if read is None or written is None else read + written,
        "tensor_pct": _tensor_pct(result),
        "spill_bytes": ratio(value(*names.LOCAL_SECTORS), 1.0, SECTOR_BYTES),
        "shared_bytes": value(*names.SHARED_MEMORY),
        "bank_conflict_pct": ratio(value(*names.BANK_CONFLICTS), value(*names.WAVEFRONTS), 100.0),
        "bytes_per_sector_load": load,
        "bytes_per_sector_store": store,
        "load_bytes": _bytes_per_lane(value(names.LOAD_SECTORS), value(names.LOAD_REQUESTS), load),
        "store_bytes": _bytes_per_lane(value(names.STORE_SECTORS), value(names.STORE_REQUESTS), store),
        **_stalls(result),
    }


def _stalls(result: Result) -> dict[str, float]:
    """Each stall's share of the cycles between two instructions of a warp, in percent."""
    latency = result.values.get(names.WARP_LATENCY)
    shares = {
        f"stall_{reason}_pct": ratio(result.values.get(names.STALL.format(reason)), latency, 100.0)
        for reason in (*names.STALLS, "gmma")
    }
    return {name: share for name, share in shares.items() if share is not None}


def _bytes_per_lane(sectors: float | None, requests: float | None, used: float | None) -> float | None:
    """Bytes that one lane moves with one instruction: sectors per request × bytes used of each, over the lanes."""
    per_request = ratio(sectors, requests)
    return None if per_request is None or used is None else per_request * used / WARP_LANES


def _tensor_pct(result: Result) -> float | None:
    busy = (result.values.get(metric) for _, _, pipes in names.TENSOR_PIPES for metric in pipes)
    return max((pct for pct in busy if pct is not None), default=None)


def _facts(result: Result) -> dict[str, str]:
    limits = {name: limit for name, metric in names.LIMITERS.items() if (limit := result.values.get(metric))}
    clock = result.values.get("gpc__cycles_elapsed.avg.per_second")
    return {
        "compute_capability": result.compute_capability,
        "occupancy_limiter": min(limits, key=limits.__getitem__, default=""),
        "mma": _matrix_instruction(result),
        "sm_clock_mhz": f"{clock / 1e6:.0f}" if clock else "",
    }


def _matrix_instruction(result: Result) -> str:
    if result.values.get(names.WARPGROUP_MMA):
        return "wgmma"
    if not _tensor_pct(result):
        return ""
    return "tcgen05" if result.values.get(names.TENSOR_PIPES[-1][2][-1]) else "mma.sync"
