"""On a CPU: hardware counters where `perf stat` really counts, and which loops the compiler vectorised."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

from kopt_mcp.errors import ToolUnavailable
from kopt_mcp.models import Profile
from kopt_mcp.models import Profiler as Tool
from kopt_mcp.platforms import profilers
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.launching import read_text, scratch
from kopt_mcp.platforms.reports import number
from kopt_mcp.profiling.answer import read_answer, told_text
from kopt_mcp.profiling.request import Request, Tools

EVENTS = {
    "cycles": "cycles",
    "instructions": "instructions",
    "cache-misses": "cache_misses",
    "branch-misses": "branch_misses",
}
"""perf's name → ours."""
CALLS = 20
SHOWN_LINES = 6
REMARK = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?P<kind>optimized|missed): *(?P<text>.*)$", re.MULTILINE)
VECTORIZED, SCALAR, REASON = "loop vectorized", "couldn't vectorize loop", "not vectorized: "
NEST = "loop nest containing"
"""An outer loop is no loss by itself: its inner loops have remarks of their own."""


def perf_rung(request: Request, tools: Tools) -> Profile:
    """Cycles, instructions and misses of one call by `perf stat`, which counts only while the candidate is called.

    Raises:
        ToolUnavailable: perf is missing, or counts nothing here.
        Cancelled: the call was given up.
    """
    tool = profilers.perf(tools.host)
    if tool.path is None:
        raise ToolUnavailable(tool.remedy)
    if refusal := tools.access.refusal(tool, request.device) or _obstacle(tool, tools.host):
        tools.access.record(tool, request.device, refusal)
        raise ToolUnavailable(refusal)
    with scratch() as folder:
        for pipe in ("control", "ack"):
            os.mkfifo(folder / pipe)
        job = request.target_job(op="call", marks="perf", calls=CALLS)
        control = f"fifo:{folder / 'control'},{folder / 'ack'}"
        options = ("-x", ",", "-o", str(folder / "perf.csv"), "-D", "-1", "--control", control, "-e", ",".join(EVENTS))
        command = [tool.path, "stat", *options, "--", *job.command(tools.python(), folder)]
        ran = tools.launch(command, folder=folder, timeout_s=job.timeout_s, watch=request.watch)
        report, answer = read_text(folder / "perf.csv"), read_answer(folder)
    counted = {name: value / CALLS for name, value in parse(report).items()}
    if not counted or ran.failure:
        raise ToolUnavailable(f"perf: {told_text(answer, 'error') or ran.reason}")
    tools.access.record(tool, request.device)
    cycles, instructions = counted.get("cycles"), counted.get("instructions")
    ipc = {"ipc": instructions / cycles} if cycles and instructions else {}
    facts = {"isolation": told_text(answer, "isolation"), "tool_version": f"perf {tool.version}"}
    return Profile(
        rung="perf",
        why="hardware counters could be read",
        workload=request.workload.name,
        kernels=[],
        metrics={"duration_us": request.timing.latency_us if request.timing else None, **counted, **ipc},
        facts={name: text for name, text in facts.items() if text},
        artifacts=[request.keep("perf.csv", report)],
    )


def _obstacle(tool: Tool, host: Host) -> str:
    """Why nothing is counted here; in virtual machines perf runs well and counts no hardware event."""
    ran = host.run([tool.path or "perf", "stat", "-x", ",", "-e", ",".join(EVENTS), "--", "true"])
    if parse(ran.stdout + ran.stderr):
        return ""
    return tool.remedy or f"perf counts no hardware event here ({ran.reason})"


def parse(report: str) -> dict[str, float]:
    """Our names and the counts of `perf stat -x ,`; what is not supported or was not counted is left out."""
    counted = {}
    for row in csv.reader(report.splitlines()):
        value = number(row[0]) if len(row) > 2 else None
        event = row[2].split(":")[0] if len(row) > 2 else ""
        if event in EVENTS and value is not None:
            counted[EVENTS[event]] = value
    return counted


def vectorization(request: Request, tools: Tools) -> tuple[dict[str, str], list[str]]:
    """Facts `vectorized` and `not_vectorized` of a C or C++ kernel built with its own flags, and the kept report.

    A compiler without the report (only GCC has it) gives a fact that says so.
    """
    with scratch() as folder:
        job = request.target_job(op="vectorization")
        ran = tools.launch(
            job.command(tools.python(), folder), folder=folder, timeout_s=job.timeout_s, watch=request.watch
        )
        answer = read_answer(folder)
        report = read_text(folder / "vectorization.txt").replace(f"{folder}/", "")
    shift = answer.get("shift")
    if ran.failure or not isinstance(shift, int):
        why = told_text(answer, "error") or ran.reason
        return {"vectorization": f"the compiler gave no report: {why[:200]}"}, []
    name = f"kernel{request.candidate.suffix}"
    return loops(report, name, shift), [request.keep("vectorization.txt", report)]


def loops(report: str, name: str, shift: int = 0) -> dict[str, str]:
    """Lines of `name` whose loop was vectorised, and those whose was not, with the compiler's reason.

    `shift`: how many lines the compiled copy has before the original's first.
    """
    remarks = [one for one in REMARK.finditer(report) if Path(one["file"]).name == name]
    done = {int(one["line"]) for one in remarks if one["text"].startswith(VECTORIZED)}
    missed: dict[int, str] = {}
    for one, after in zip(remarks, [*remarks[1:], None], strict=True):
        if one["text"].startswith(SCALAR):
            # The remark that follows is the reason.
            reason = after["text"].removeprefix(REASON) if after and after["kind"] == "missed" else ""
            missed.setdefault(int(one["line"]), reason)
    scalar = {line: why for line, why in sorted(missed.items()) if line not in done and not why.startswith(NEST)}
    shown = [f"line {line - shift}" + (f" ({why})" if why else "") for line, why in list(scalar.items())[:SHOWN_LINES]]
    found = {
        "vectorized": ", ".join(f"line {line - shift}" for line in sorted(done)),
        "not_vectorized": "; ".join(shown),
    }
    return {key: text for key, text in found.items() if text}
