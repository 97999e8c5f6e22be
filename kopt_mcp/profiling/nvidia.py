"""The highest rung on NVIDIA: Nsight Compute on one warm call of the candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kopt_mcp.errors import ToolUnavailable
from kopt_mcp.models import Profile
from kopt_mcp.models import Profiler as Tool
from kopt_mcp.platforms import ncu
from kopt_mcp.platforms.host import Host, Ran
from kopt_mcp.platforms.ncu_report import Result, parse
from kopt_mcp.platforms.profilers import ncu as find_ncu
from kopt_mcp.platforms.reports import Failure, raise_failure
from kopt_mcp.profiling.access import CounterAccess
from kopt_mcp.profiling.process import read_answer, read_text, scratch, told_text
from kopt_mcp.profiling.request import Launch, Request

LOG = "ncu.csv"
REPORT = "report"
REMEASURED = 3
"""How often a run is repeated with fewer metrics: each repetition costs seconds."""
FULL_TIME = 4
"""A full report takes about forty passes where a quick one takes ten."""


@dataclass(frozen=True)
class Reported:
    """What a run of ncu left: the CSV with ncu's own messages, and everything that was printed besides."""

    csv: str
    output: str
    ran: Ran


class NcuRung:
    """`ncu`, for as long as it may read counters."""

    name = "ncu"

    def __init__(self, python: Callable[[], str], host: Host, launch: Launch, access: CounterAccess) -> None:
        self._python = python
        self._host = host
        self._launch = launch
        self._access = access

    def __call__(self, request: Request) -> Profile:
        """Counters of every kernel of one call.

        Raises:
            ToolUnavailable: ncu is missing, may not read counters, saw no kernel or did not end; with the remedy.
            Cancelled: the call was given up.
        """
        tool = find_ncu(self._host)
        if tool.path is None:
            raise ToolUnavailable(tool.remedy)
        # Asking for the full set tries again what was refused before.
        if not request.full and (refusal := self._access.refusal(tool, request.device)):
            raise ToolUnavailable(refusal)
        with scratch() as folder:
            reported = self._run(request, tool.path, folder)
            if request.full and (folder / f"{REPORT}.ncu-rep").exists():
                reported = self._imported(request, tool.path, folder, reported)
            results = parse(reported.csv)
            if not ncu.counted(results):
                self._fail(request, tool, reported, folder)
            self._access.record(tool, request.device)
            return self._profile(request, tool, folder, reported, results)

    def _run(self, request: Request, program: str, folder: Path) -> Reported:
        metrics: Sequence[str] = ncu.metrics_for(request.device.arch)
        job = request.target_job(op="call", marks="cuda", shut_in=False)
        target = job.command(self._python(), folder)
        log = folder / LOG
        for _ in range(REMEASURED):
            command = ncu.command(
                program,
                target,
                log_file=str(log),
                metrics=metrics,
                full=request.full,
                export=str(folder / REPORT) if request.full else "",
            )
            request.watch.progress(0.2, f"ncu runs {request.workload.name}")
            timeout_s = job.timeout_s * (FULL_TIME if request.full else 1)
            ran = self._launch(command, folder=folder, timeout_s=timeout_s, watch=request.watch)
            reported = Reported(read_text(log), f"{ran.stdout}\n{ran.stderr}", ran)
            left = ncu.without_unknown(metrics, f"{reported.csv}\n{reported.output}")
            if left is None or ncu.counted(parse(reported.csv)):
                break
            metrics = left
        return reported

    def _imported(self, request: Request, program: str, folder: Path, reported: Reported) -> Reported:
        """The raw page of a full report; its details page, with the rules, and the report itself are kept."""
        pages = {}
        for page, csv in (("raw", True), ("details", False)):
            command = ncu.import_command(program, str(folder / f"{REPORT}.ncu-rep"), page=page, csv=csv)
            ran = self._launch(command, folder=folder, timeout_s=request.job.timeout_s, watch=request.watch)
            pages[page] = ran.stdout
        request.keep("details.txt", pages["details"])
        request.keep("report.ncu-rep", (folder / f"{REPORT}.ncu-rep").read_bytes())
        return Reported(pages["raw"], f"{reported.csv}\n{reported.output}", reported.ran)

    def _profile(
        self, request: Request, tool: Tool, folder: Path, reported: Reported, results: list[Result]
    ) -> Profile:
        kept = [request.keep(LOG, reported.csv)]
        if request.full:
            kept += [str(request.artifacts / name) for name in ("details.txt", "report.ncu-rep")]
        profile = ncu.to_profile(
            results,
            workload=request.workload.name,
            why="hardware counters could be read",
            authored=request.authored,
            tool_version=f"ncu {tool.version}" if tool.version else "ncu",
            artifacts=[path for path in kept if Path(path).exists()],
        )
        facts = {"isolation": told_text(read_answer(folder), "isolation")}
        if len(results) >= ncu.MOST_LAUNCHES:
            facts["launches"] = f"only the first {ncu.MOST_LAUNCHES} of the call were recorded"
        return profile.model_copy(update={"facts": {**profile.facts, **{k: v for k, v in facts.items() if v}}})

    def _fail(self, request: Request, tool: Tool, reported: Reported, folder: Path) -> NoReturn:
        failure = _failure(reported, folder)
        if failure.kind == "permission":
            refusal = f"ncu: {failure.text.rstrip('.')} ({failure.kind}). {failure.remedy}"
            self._access.record(tool, request.device, refusal)
        raise_failure("ncu", failure)


def _failure(reported: Reported, folder: Path) -> Failure:
    """The reason, the nearest one first: what ncu says, what the target says, where the target stood."""
    answer = read_answer(folder)
    stage, error = told_text(answer, "stage"), told_text(answer, "error")
    found = ncu.failure(f"{reported.csv}\n{reported.output}")
    if found and found.kind == "permission":
        return found
    if reported.ran.failure == "timeout":
        return _timeout(stage)
    if error:
        return Failure("target", f"the candidate failed while {stage or 'starting'}: {error}", ncu.TARGET_REMEDY)
    return found or Failure("no_kernels", reported.ran.reason, ncu.NO_KERNELS_REMEDY)


def _timeout(stage: str) -> Failure:
    """Replay takes long, but before the profiled call nothing is replayed: there the candidate itself hangs."""
    if stage and stage != "in the profiled call" and stage != "done":
        remedy = "Nothing is replayed at that stage: the candidate itself hangs or compiles for too long."
        return Failure("target", f"no end in time, while {stage}", remedy)
    return ncu.TIMED_OUT
