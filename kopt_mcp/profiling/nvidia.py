"""The highest rung on NVIDIA: Nsight Compute on one warm call of the candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt_mcp.errors import ToolUnavailable
from kopt_mcp.models import Profile
from kopt_mcp.platforms import ncu, profilers
from kopt_mcp.platforms.host import Ran
from kopt_mcp.platforms.launching import read_text, scratch
from kopt_mcp.platforms.ncu_report import parse
from kopt_mcp.platforms.reports import Failure
from kopt_mcp.profiling.answer import read_answer, told_text
from kopt_mcp.profiling.request import Request, Tools

LOG = "ncu.csv"
EXPORT = "report"
REPORT = f"{EXPORT}.ncu-rep"
REMEASURED = 3
"""How often a run is repeated with fewer metrics: each repetition costs seconds."""
FULL_TIME = 4
"""A full report takes about forty passes where a quick one takes ten."""


@dataclass(frozen=True)
class Reported:
    """What a run of ncu left: the CSV, all that was printed (the CSV too), and how it ended."""

    csv: str
    output: str
    ran: Ran


def ncu_rung(request: Request, tools: Tools) -> Profile:
    """Counters of every kernel of one call.

    Raises:
        ToolUnavailable: ncu is missing, may not read counters, saw no kernel or did not end; with the remedy.
        Cancelled: the call was given up.
    """
    tool = profilers.ncu(tools.host)
    if tool.path is None:
        raise ToolUnavailable(tool.remedy)
    # Asking for the full set tries again what was refused before.
    if not request.full and (refusal := tools.access.refusal(tool, request.device)):
        raise ToolUnavailable(refusal)
    with scratch() as folder:
        reported = _run(request, tools, tool.path, folder)
        kept: list[str] = []
        if request.full and (folder / REPORT).exists():
            reported, kept = _imported(request, tools, tool.path, folder, reported)
        answer = read_answer(folder)
    results = parse(reported.csv)
    if not ncu.counted(results):
        failure = _failure(reported, answer)
        if failure.kind == "permission":
            tools.access.record(tool, request.device, f"ncu: {failure.words}")
        raise ToolUnavailable(f"ncu: {failure.words}")
    tools.access.record(tool, request.device)
    cut = f"only the first {ncu.MOST_LAUNCHES} of the call were recorded"
    facts = {
        "tool_version": f"ncu {tool.version or ''}".strip(),
        "isolation": told_text(answer, "isolation"),
        "launches": cut if len(results) >= ncu.MOST_LAUNCHES else "",
    }
    artifacts = [request.keep(LOG, reported.csv), *kept]
    return request.profile("ncu", ncu.launches(results), "hardware counters could be read", facts, artifacts)


def _run(request: Request, tools: Tools, program: str, folder: Path) -> Reported:
    metrics: Sequence[str] = ncu.metrics_for(request.device.arch)
    target = request.target_job(op="call", marks="cuda", shut_in=False).command(tools.python(), folder)
    export = str(folder / EXPORT) if request.full else ""
    timeout_s = request.job.timeout_s * (FULL_TIME if request.full else 1)
    for _ in range(REMEASURED):
        command = ncu.command(program, target, log_file=str(folder / LOG), metrics=metrics, export=export)
        request.watch.progress(0.2, f"ncu runs {request.workload.name}")
        ran = tools.launch(command, folder=folder, timeout_s=timeout_s, watch=request.watch)
        csv = read_text(folder / LOG)
        reported = Reported(csv, f"{csv}\n{ran.stdout}\n{ran.stderr}", ran)
        left = ncu.without_unknown(metrics, reported.output)
        if left is None or ncu.counted(parse(csv)):
            break
        metrics = left
    return reported


def _imported(
    request: Request, tools: Tools, program: str, folder: Path, reported: Reported
) -> tuple[Reported, list[str]]:
    """The raw page of a full report; its details page, with the rules, and the report itself are kept."""

    def page(name: str, csv: bool) -> str:
        command = ncu.import_command(program, str(folder / REPORT), page=name, csv=csv)
        return tools.launch(command, folder=folder, timeout_s=request.job.timeout_s, watch=request.watch).stdout

    raw, details = page("raw", True), page("details", False)
    kept = [request.keep("details.txt", details), request.keep(REPORT, (folder / REPORT).read_bytes())]
    return Reported(raw, reported.output, reported.ran), kept


def _failure(reported: Reported, answer: dict[str, Any]) -> Failure:
    """The reason, the nearest one first: what ncu says, what the target says, where the target stood."""
    stage, error = told_text(answer, "stage"), told_text(answer, "error")
    found = ncu.failure(reported.output)
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
