"""compute-sanitizer on request: reads and writes outside of memory, and races on shared memory.

The candidate is called once on its smallest workloads in a process of its own, each tensor in an allocation of exactly
its size and torch's caching allocator off, which would hide what lies behind a tensor. It is shut in but for the
network namespace, since the tool reaches its target through an abstract socket; where that fails it runs once more with
resource limits only, and the result says so.

A finding is the candidate's fault. A pass is advice like every profile: the candidate shares a process with the tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from kopt_mcp.evaluator.records import Job, WorkloadInfo
from kopt_mcp.models import Device, SanitizerRun
from kopt_mcp.platforms.host import Host, Ran
from kopt_mcp.platforms.launching import Launch, launch, read_text, scratch
from kopt_mcp.platforms.profilers import compute_sanitizer
from kopt_mcp.profiling.answer import read_answer, told_text
from kopt_mcp.profiling.request import target_job
from kopt_mcp.watch import Watch

WORKLOADS = 2
"""How many of the smallest workloads are called: instrumented code is ten to a hundred times slower."""
FOUND = 86
"""Exit status that the tool is asked for when it has found something."""
SHUT_IN_S = 60.0
"""Longest run of a target that is shut in, before it is given another chance."""
LOG = "sanitizer.log"
_MARK = "========= "
_FINDING = re.compile(r"(Invalid |Potential invalid |Misaligned |Out-of-range |(?i:error): (Race|Potential) ).*")
_OF_THE_RUN = (
    *("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "Target ", "Internal ", "Warning"),
    *("WARNING", "Error: process", "Error: Target", "Error: No "),
)
"""Beginnings of lines that are no finding."""
_PLACES = (
    re.compile(r"\bat .+?\+0x[0-9a-f]+ in (?P<file>\S+?):(?P<line>\d+)\b"),
    re.compile(r"\bat 0x[0-9a-f]+ in (?P<file>\S+?):(?P<line>\d+)(:|\b)"),  # before release 2023.1
)
_SUMMARY = {
    "memcheck": re.compile(r"ERROR SUMMARY: (\d+) error"),
    "racecheck": re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error"),
}
_RELEVANT_LINES = 4
"""A finding's place stands in it or right below it; backtraces follow, which name other lines."""

SanitizerTool = Literal["memcheck", "racecheck"]


class Sanitizer:
    """Runs compute-sanitizer around a candidate."""

    def __init__(self, python: Callable[[], str], host: Host | None = None, launch: Launch = launch) -> None:
        self._python, self._host, self._launch = python, host or Host(), launch
        self._shut_in = True
        """Until a run shows that only the one that is not comes to an end here."""

    def __call__(
        self, *, device: Device, job: Job, workloads: Sequence[WorkloadInfo], watch: Watch
    ) -> tuple[SanitizerRun, ...]:
        """Memory first; races where the kernel is CUDA C++ with shared memory of its own and memory is in order.

        Raises:
            Cancelled: the call was given up.
        """
        program, why = self._program(device)
        if program is None:
            return (SanitizerRun(tool="memcheck", status="not run", why=why),)
        chosen = tuple(w.name for w in sorted(workloads, key=lambda w: w.bytes)[:WORKLOADS])
        runs = [self._run(program, "memcheck", job, chosen, watch)]
        kernel = Path(job.candidate)
        if runs[0].status == "passed" and kernel.suffix == ".cu" and b"__shared__" in kernel.read_bytes():
            runs.append(self._run(program, "racecheck", job, chosen, watch))
        return tuple(runs)

    def _program(self, device: Device) -> tuple[str | None, str]:
        if device.platform != "nvidia":
            return None, f"compute-sanitizer checks CUDA kernels, and this experiment runs on {device.name}"
        python = Path(self._python())
        found = compute_sanitizer(self._host, str(python.parent.parent) if python.is_absolute() else "")
        return found.path, found.remedy

    def _run(
        self, program: str, tool: SanitizerTool, job: Job, workloads: tuple[str, ...], watch: Watch
    ) -> SanitizerRun:
        watch.progress(0.5, f"compute-sanitizer {tool} watches {', '.join(workloads)}")
        if self._shut_in:
            inside = self._attempt(program, tool, job, workloads, watch, shut_in=True)
            if inside.status != "not run":
                return inside
        outside = self._attempt(program, tool, job, workloads, watch, shut_in=False)
        self._shut_in = self._shut_in and outside.status == "not run"
        return outside

    def _attempt(
        self, program: str, tool: SanitizerTool, job: Job, workloads: tuple[str, ...], watch: Watch, shut_in: bool
    ) -> SanitizerRun:
        timeout_s = min(job.timeout_s, SHUT_IN_S) if shut_in else job.timeout_s
        options = {"workloads": workloads, "shut_in": shut_in, "own_network": False, "timeout_s": timeout_s}
        target = target_job(job, op="each", **options)
        with scratch() as folder:
            command = [*_command(program, tool, folder), *target.command(self._python(), folder)]
            ran = self._launch(command, folder=folder, timeout_s=timeout_s, watch=watch)
            return judge(tool, read_text(folder / LOG), read_answer(folder), ran, str(folder))


def _command(program: str, tool: str, folder: Path) -> list[str]:
    # The caching allocator hands out pieces of large blocks, in which nothing is out of bounds.
    return [
        *("env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1"),
        *(program, "--tool", tool, "--error-exitcode", str(FOUND), "--log-file", str(folder / LOG)),
        *("--report-api-errors", "no", "--print-limit", "10", "--target-processes", "application-only"),
    ]


def judge(tool: SanitizerTool, log: str, answer: dict[str, Any], ran: Ran, folder: str) -> SanitizerRun:
    """What a run says, from the tool's log, the target's answer and how the tool ended. Pure."""
    lines = [line.removeprefix(_MARK).strip() for line in log.splitlines() if line.startswith(_MARK)]
    isolation = told_text(answer, "isolation")
    for number, line in enumerate(lines):
        if found := _FINDING.match(line):
            shift = answer.get("shift")
            place = _place(lines[number : number + _RELEVANT_LINES], folder, shift if isinstance(shift, int) else 0)
            return SanitizerRun(tool=tool, status="failed", finding=found[0][:200], place=place, isolation=isolation)
    count = next((int(m[1]) for line in lines if (m := _SUMMARY[tool].search(line))), None)
    if count:
        odd = next((line for line in lines if not line.startswith(_OF_THE_RUN)), f"{count} findings")
        return SanitizerRun(tool=tool, status="failed", finding=odd[:200], isolation=isolation)
    if count == 0 and ran.returncode == 0 and answer.get("stage") == "done":
        return SanitizerRun(tool=tool, status="passed", isolation=isolation)
    return SanitizerRun(tool=tool, status="not run", why=_why(lines, answer, ran), isolation=isolation)


def _place(lines: Sequence[str], folder: str, shift: int) -> str:
    for line in lines:
        for pattern in _PLACES:
            if found := pattern.search(line):
                return f"{found['file'].replace(folder + '/', '')}:{int(found['line']) - shift}"
    return ""


def _why(lines: Sequence[str], answer: dict[str, Any], ran: Ran) -> str:
    """The nearest reason: what the tool says, what the target says, how the tool ended."""
    said = next((line for line in lines if line.startswith(("Error", "Internal", "Target application"))), "")
    stage, error = told_text(answer, "stage"), told_text(answer, "error")
    if error:
        return f"the candidate failed while {stage or 'starting'}, without a finding: {error[:200]}"
    if ran.failure == "timeout":
        return f"no end in time{f', while {stage}' if stage else ''}; add a smaller workload to the problem"
    return (said or ran.reason)[:200]
