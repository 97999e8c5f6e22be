"""On a CPU: hardware counters where `perf stat` really counts, and which loops the compiler vectorised."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable
from pathlib import Path

from kopt_mcp.errors import ToolUnavailable
from kopt_mcp.models import Profile
from kopt_mcp.platforms import profilers
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.reports import number
from kopt_mcp.profiling.access import CounterAccess
from kopt_mcp.profiling.process import read_answer, read_text, scratch, told_text
from kopt_mcp.profiling.request import Launch, Request

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


class PerfRung:
    """`perf stat`, with its counters on only while the candidate is called."""

    name = "perf"

    def __init__(self, python: Callable[[], str], host: Host, launch: Launch, access: CounterAccess) -> None:
        self._python = python
        self._host = host
        self._launch = launch
        self._access = access

    def __call__(self, request: Request) -> Profile:
        """Cycles, instructions and misses of one call.

        Raises:
            ToolUnavailable: perf is missing, or counts nothing here.
            Cancelled: the call was given up.
        """
        tool = profilers.perf(self._host)
        if tool.path is None:
            raise ToolUnavailable(tool.remedy)
        if refusal := self._access.refusal(tool, request.device) or self._probe(tool.path):
            self._access.record(tool, request.device, refusal)
            raise ToolUnavailable(refusal)
        with scratch() as folder:
            for pipe in ("control", "ack"):
                os.mkfifo(folder / pipe)
            job = request.target_job(op="call", marks="perf", calls=CALLS)
            report = folder / "perf.csv"
            control = f"fifo:{folder / 'control'},{folder / 'ack'}"
            options = ("-x", ",", "-o", str(report), "-D", "-1", "--control", control, "-e", ",".join(EVENTS))
            command = [tool.path, "stat", *options, "--", *job.command(self._python(), folder)]
            ran = self._launch(command, folder=folder, timeout_s=job.timeout_s, watch=request.watch)
            counted = {name: value / CALLS for name, value in parse(read_text(report)).items()}
            if not counted or ran.failure:
                raise ToolUnavailable(f"perf: {told_text(read_answer(folder), 'error') or ran.reason}")
            kept = request.keep("perf.csv", read_text(report))
            facts = {"isolation": told_text(read_answer(folder), "isolation"), "tool_version": f"perf {tool.version}"}
        self._access.record(tool, request.device)
        cycles, instructions = counted.get("cycles"), counted.get("instructions")
        ipc = {"ipc": instructions / cycles} if cycles and instructions else {}
        duration = request.timing.latency_us if request.timing else None
        return Profile(
            rung="perf",
            why="hardware counters could be read",
            workload=request.workload.name,
            kernels=[],
            metrics={"duration_us": duration, **counted, **ipc},
            facts={name: text for name, text in facts.items() if text},
            artifacts=[kept],
        )

    def _probe(self, program: str) -> str:
        """Why nothing is counted here; in virtual machines perf runs well and counts no hardware event."""
        ran = self._host.run([program, "stat", "-x", ",", "-e", ",".join(EVENTS), "--", "true"])
        if parse(ran.stdout + ran.stderr):
            return ""
        return profilers.perf(self._host).remedy or f"perf counts no hardware event here ({ran.reason})"


def parse(report: str) -> dict[str, float]:
    """Our names and the counts of `perf stat -x ,`; what is not supported or was not counted is left out."""
    counted = {}
    for row in csv.reader(report.splitlines()):
        value = number(row[0]) if len(row) > 2 else None
        event = row[2].split(":")[0] if len(row) > 2 else ""
        if event in EVENTS and value is not None:
            counted[EVENTS[event]] = value
    return counted


def vectorization(request: Request, python: str, launch: Launch) -> tuple[dict[str, str], list[str]]:
    """Facts `vectorized` and `not_vectorized` of a C or C++ kernel built with its own flags, and the kept report.

    A compiler without the report (only GCC has it) gives a fact that says so.
    """
    with scratch() as folder:
        job = request.target_job(op="vectorization")
        ran = launch(job.command(python, folder), folder=folder, timeout_s=job.timeout_s, watch=request.watch)
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
