"""The rungs on AMD: rocprofv3 with counters, and the legacy rocprof for machines that have nothing newer.

Not run on hardware; see `kopt_mcp.platforms.rocprof`.
"""

from __future__ import annotations

from pathlib import Path

from kopt_mcp.errors import ToolUnavailable
from kopt_mcp.models import Profile
from kopt_mcp.platforms import profilers, rocprof
from kopt_mcp.platforms.launching import read_text, scratch
from kopt_mcp.profiling.answer import read_answer, told_number, told_text
from kopt_mcp.profiling.request import Request, Tools

NO_ROCTX = (
    "rocprofv3 cannot be told which call to record: librocprofiler-sdk-roctx.so was not found. Install rocprofiler-sdk."
)
TIMED_OUT = "rocprofv3 did not end in time, {stage}. Take a smaller workload."
LEGACY_CALLS = 50
"""The legacy tool records the whole process: many calls drown what else ran there."""


def rocprofv3_rung(request: Request, tools: Tools) -> Profile:
    """Kernel trace, then one run for each pass of counters; without counters the trace alone.

    Raises:
        ToolUnavailable: rocprofv3 is missing, may not open the device or saw no kernel; with the remedy.
        Cancelled: the call was given up.
    """
    device, tool = request.device, profilers.rocprofv3(tools.host)
    library = profilers.roctx_library(tools.host)
    if tool.path is None or library is None:
        raise ToolUnavailable(tool.remedy if tool.path is None else NO_ROCTX)
    with scratch() as folder:
        job = request.target_job(op="call", marks="roctx", library=library, shut_in=False)
        target = job.command(tools.python(), folder)
        output = _run(request, tools, rocprof.trace_command(tool.path, target, str(folder / "trace")), folder)
        report = _only(folder / "trace", "kernel_trace.csv") or _only(folder / "trace", "kernel_stats.csv")
        counted, refusal = _counters(request, tools, tool.path, target, folder)
        isolation = told_text(read_answer(folder), "isolation")
    kept = [request.keep("kernel_trace.csv", report)]
    kept += [request.keep(f"counters_pass{number}.csv", text) for number, text in enumerate(counted)]
    launches = rocprof.launches(
        report,
        counted,
        arch=device.arch,
        compute_units=device.sm_count,
        peak_gbps=device.bandwidth_gbps.value if device.bandwidth_gbps else None,
    )
    if not launches:
        raise ToolUnavailable(f"rocprofv3: {(rocprof.failure(output) or rocprof.NO_KERNELS).words}")
    tools.access.record(tool, device, refusal)
    version = f"rocprofv3 {tool.version or ''}".strip()
    facts = {"tool_version": version, "isolation": isolation, "counters": refusal}
    return request.profile("rocprofv3", launches, "rocprofv3 could trace the kernels", facts, kept)


def _counters(request: Request, tools: Tools, program: str, target: list[str], folder: Path) -> tuple[list[str], str]:
    """The counter files of all passes, or why there are none."""
    directory = folder / "counters"
    commands = rocprof.counter_commands(program, target, str(directory), request.device.arch, full=request.full)
    for number, command in enumerate(commands):
        request.watch.progress(0.3 + 0.6 * number / len(commands), f"counters, pass {number + 1}")
        if failure := rocprof.failure(_run(request, tools, command, folder)):
            return [], failure.words
    return [read_text(path) for path in sorted(directory.rglob("*counter_collection.csv"))], ""


def _run(request: Request, tools: Tools, command: list[str], folder: Path) -> str:
    ran = tools.launch(command, folder=folder, timeout_s=request.job.timeout_s, watch=request.watch)
    if ran.failure == "timeout":
        raise ToolUnavailable(TIMED_OUT.format(stage=told_text(read_answer(folder), "stage") or "while it started"))
    return f"{ran.stdout}\n{ran.stderr}"


def _only(folder: Path, ending: str) -> str:
    """The one report of that kind, whatever the tool put before its name; empty when there is none."""
    found = sorted(folder.rglob(f"*{ending}"))
    return read_text(found[0]) if found else ""


def rocprof_rung(request: Request, tools: Tools) -> Profile:
    """`rocprof --stats`: kernel times of a whole process in which the candidate is called many times.

    Raises:
        ToolUnavailable: rocprof is missing or saw no kernel, or the candidate failed under it.
        Cancelled: the call was given up.
    """
    tool = profilers.rocprof(tools.host)
    if tool.path is None:
        raise ToolUnavailable(tool.remedy)
    with scratch() as folder:
        job = request.target_job(op="call", calls=LEGACY_CALLS, shut_in=False)
        target = job.command(tools.python(), folder)
        command = rocprof.stats_command(tool.path, target, output=str(folder / "results.csv"))
        ran = tools.launch(command, folder=folder, timeout_s=job.timeout_s, watch=request.watch)
        report, answer = read_text(folder / "results.stats.csv"), read_answer(folder)
    if error := told_text(answer, "error"):
        raise ToolUnavailable(f"rocprof: the candidate failed: {error}")
    warm_ups = told_number(answer, "warm_ups") or 0
    launches = rocprof.stats_launches(report, LEGACY_CALLS + int(min(warm_ups, LEGACY_CALLS)))
    if not launches:
        failure = rocprof.failure(f"{ran.stdout}\n{ran.stderr}") or rocprof.NO_KERNELS
        raise ToolUnavailable(f"rocprof: {failure.words}")
    facts = {"scope": "the whole process, the drawing of inputs included"}
    kept = [request.keep("rocprof.stats.csv", report)]
    return request.profile("rocprof", launches, "rocprof could trace the process", facts, kept)
