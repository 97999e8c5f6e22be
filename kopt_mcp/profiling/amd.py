"""The rungs on AMD: rocprofv3 with counters, and the legacy rocprof for machines that have nothing newer.

Not run on hardware; see `kopt_mcp.platforms.rocprof`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kopt_mcp.errors import ToolUnavailable
from kopt_mcp.models import Profile
from kopt_mcp.platforms import profilers, rocprof
from kopt_mcp.platforms.host import Host
from kopt_mcp.profiling.access import CounterAccess
from kopt_mcp.profiling.process import read_answer, read_text, scratch, told_number, told_text
from kopt_mcp.profiling.request import Launch, Request

NO_ROCTX = (
    "rocprofv3 cannot be told which call to record: librocprofiler-sdk-roctx.so was not found. Install rocprofiler-sdk."
)
TIMED_OUT = "rocprofv3 did not end in time, {stage}. Take a smaller workload."
LEGACY_CALLS = 50
"""The legacy tool records the whole process: many calls drown what else ran there."""


class Rocprofv3Rung:
    """Kernel trace, then one run for each pass of counters; without counters the trace alone."""

    name = "rocprofv3"

    def __init__(self, python: Callable[[], str], host: Host, launch: Launch, access: CounterAccess) -> None:
        self._python = python
        self._host = host
        self._launch = launch
        self._access = access

    def __call__(self, request: Request) -> Profile:
        """Durations, launch shapes and counters of the kernels of one call.

        Raises:
            ToolUnavailable: rocprofv3 is missing, may not open the device or saw no kernel; with the remedy.
            Cancelled: the call was given up.
        """
        tool, library = profilers.rocprofv3(self._host), profilers.roctx_library(self._host)
        if tool.path is None or library is None:
            raise ToolUnavailable(tool.remedy if tool.path is None else NO_ROCTX)
        with scratch() as folder:
            job = request.target_job(op="call", marks="roctx", library=library, shut_in=False)
            target = job.command(self._python(), folder)
            trace = rocprof.trace_command(tool.path, target, directory=str(folder / "trace"), regions=True)
            output = self._run(request, trace, folder)
            report = _only(folder / "trace", "kernel_trace.csv") or _only(folder / "trace", "kernel_stats.csv")
            counted, refusal = self._counters(request, tool.path, target, folder)
            kept = [request.keep("kernel_trace.csv", report)]
            kept += [request.keep(f"counters_pass{number}.csv", text) for number, text in enumerate(counted)]
            profile = rocprof.to_profile(
                report,
                counted,
                arch=request.device.arch,
                workload=request.workload.name,
                why="rocprofv3 could trace the kernels",
                authored=request.authored,
                compute_units=request.device.sm_count,
                peak_gbps=request.device.bandwidth_gbps.value if request.device.bandwidth_gbps else None,
                tool_version=f"rocprofv3 {tool.version}" if tool.version else "rocprofv3",
                artifacts=kept,
                output=output,
            )
            self._access.record(tool, request.device, refusal)
            facts = {"isolation": told_text(read_answer(folder), "isolation"), "counters": refusal}
        return profile.model_copy(update={"facts": {**profile.facts, **{k: v for k, v in facts.items() if v}}})

    def _counters(self, request: Request, program: str, target: list[str], folder: Path) -> tuple[list[str], str]:
        """The counter files of all passes, or why there are none."""
        directory = folder / "counters"
        commands = rocprof.counter_commands(
            program, target, arch=request.device.arch, directory=str(directory), regions=True, full=request.full
        )
        for number, command in enumerate(commands):
            request.watch.progress(0.3 + 0.6 * number / len(commands), f"counters, pass {number + 1}")
            output = self._run(request, command, folder)
            if failure := rocprof.failure(output):
                return [], f"{failure.text.rstrip('.')} ({failure.kind}). {failure.remedy}"
        return [read_text(path) for path in sorted(directory.rglob("*counter_collection.csv"))], ""

    def _run(self, request: Request, command: list[str], folder: Path) -> str:
        ran = self._launch(command, folder=folder, timeout_s=request.job.timeout_s, watch=request.watch)
        if ran.failure == "timeout":
            raise ToolUnavailable(TIMED_OUT.format(stage=told_text(read_answer(folder), "stage") or "while it started"))
        return f"{ran.stdout}\n{ran.stderr}"


class RocprofRung:
    """`rocprof --stats`: kernel times of a whole process in which the candidate is called many times."""

    name = "rocprof"

    def __init__(self, python: Callable[[], str], host: Host, launch: Launch) -> None:
        self._python = python
        self._host = host
        self._launch = launch

    def __call__(self, request: Request) -> Profile:
        """Times by kernel; see `Rocprofv3Rung`."""
        tool = profilers.rocprof(self._host)
        if tool.path is None:
            raise ToolUnavailable(tool.remedy)
        with scratch() as folder:
            job = request.target_job(op="call", calls=LEGACY_CALLS, shut_in=False)
            command = rocprof.stats_command(
                tool.path, job.command(self._python(), folder), output=str(folder / "results.csv")
            )
            ran = self._launch(command, folder=folder, timeout_s=job.timeout_s, watch=request.watch)
            report = read_text(folder / "results.stats.csv")
            answer = read_answer(folder)
            if error := told_text(answer, "error"):
                raise ToolUnavailable(f"rocprof: the candidate failed: {error}")
            warm_ups = told_number(answer, "warm_ups") or 0
            profile = rocprof.stats_to_profile(
                report,
                workload=request.workload.name,
                why="rocprof could trace the process",
                authored=request.authored,
                repeats=LEGACY_CALLS + int(min(warm_ups, LEGACY_CALLS)),
                artifacts=[request.keep("rocprof.stats.csv", report)] if report else [],
                output=f"{ran.stdout}\n{ran.stderr}",
            )
        scope = "the whole process, the drawing of inputs included"
        return profile.model_copy(update={"facts": {**profile.facts, "scope": scope}})


def _only(folder: Path, ending: str) -> str:
    """The one report of that kind, whatever the tool put before its name; empty when there is none."""
    found = sorted(folder.rglob(f"*{ending}"))
    return read_text(found[0]) if found else ""
