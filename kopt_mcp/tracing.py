"""Solutions in, traces out: what `evaluate` adds for FlashInfer-Bench and SOL-ExecBench.

A trace holds the time of a solution on a workload beside that of the definition's reference, so that the reference is
what the solution is timed in turns with.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kopt_mcp.errors import InputRefused, ProblemInvalid, WorkspaceFailed
from kopt_mcp.evaluator.records import Evaluation, WorkloadResult
from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.definitions import Workload, definition_of, names_of, workloads_of
from kopt_mcp.problems.solutions import kernel_text, solution_of

STATUSES = {
    "PASSED": "PASSED",
    "INCORRECT_SHAPE": "INCORRECT_SHAPE",
    "INCORRECT_DTYPE": "INCORRECT_DTYPE",
    "INCORRECT_NUMERICAL": "INCORRECT_NUMERICAL",
    "COMPILE_ERROR": "COMPILE_ERROR",
    "RUNTIME_ERROR": "RUNTIME_ERROR",
    "OUT_OF_MEMORY": "RUNTIME_ERROR",
    "TIMEOUT": "TIMEOUT",
    "CHEATED": "REWARD_HACK",
    "SUSPECT": "REWARD_HACK",
    "INVALID_PROBLEM": "INVALID_REFERENCE",
}
"""Our statuses in their words; those that are left out say nothing about the solution, and leave no trace."""
ONLY_SOL = ("REWARD_HACK", "INVALID_REFERENCE")
"""Statuses that FlashInfer-Bench has no word for: it would refuse the trace, so that none is written."""


@dataclass(frozen=True)
class Traced:
    """A definition whose traces are asked for, and the file that they are appended to."""

    definition: Path
    solution: str
    file: Path

    def reference(self, folder: Path) -> Path:
        """The definition's reference as a kernel file in `folder`."""
        path = folder / "reference.py"
        path.write_text(definition_of(self.definition).reference, encoding="utf-8")
        return path

    def write(self, checked: Evaluation, timed: Evaluation, hardware: str) -> int:
        """Append a line for each workload of which something was found out; the number of lines.

        Raises:
            WorkspaceFailed: the file cannot be written.
        """
        definition = definition_of(self.definition)
        given = workloads_of(self.definition, definition)
        results = _together(checked, timed)
        where = {
            "environment": {"hardware": hardware, "libs": dict(timed.environment)},
            "timestamp": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        lines = []
        for name, workload in zip(names_of(given), given, strict=True):
            if name in results and (outcome := outcome_of(workload, results[name])):
                trace = {"definition": definition.name, "workload": workload.written, "solution": self.solution}
                lines.append(json.dumps({**trace, "evaluation": {**outcome, **where}}, allow_nan=False))
        try:
            with self.file.open("a", encoding="utf-8") as out:
                out.writelines(line + "\n" for line in lines)
        except OSError as error:
            raise WorkspaceFailed(f"{self.file} cannot be written: {error.strerror}; name another file.") from error
        return len(lines)


def outcome_of(workload: Workload, result: WorkloadResult) -> dict[str, Any] | None:
    """What a trace says of a solution on a workload; None where nothing was found out."""
    status = STATUSES.get(result.status)
    timing, incumbent = result.timing, result.incumbent
    if status is None or (workload.in_trace and status in ONLY_SOL):
        return None
    correctness = performance = None
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        correctness = {
            "max_relative_error": result.max_rel_error or 0.0,
            "max_absolute_error": result.max_abs_error or 0.0,
            "extra": {"share_of_allowed_error": result.error_ratio, "checks": result.checks},
        }
    if status == "PASSED":
        if timing is None or incumbent is None:
            return None
        performance = {
            "latency_ms": timing.latency_us / 1e3,
            "reference_latency_ms": incumbent.latency_us / 1e3,
            "speedup_factor": incumbent.latency_us / timing.latency_us,
        }
    return {"status": status, "log": result.detail, "correctness": correctness, "performance": performance}


def _together(checked: Evaluation, timed: Evaluation) -> Mapping[str, WorkloadResult]:
    """Each workload's verdict: the first that is not a pass, with the times of the one and the errors of the other."""
    made = {r.workload: r for r in checked.workloads}
    for result in timed.workloads:
        first = made.setdefault(result.workload, result)
        if first is not result and first.status == "PASSED":
            made[result.workload] = replace(
                first,
                status=result.status,
                detail=result.detail,
                timing=result.timing,
                incumbent=result.incumbent,
                checks=first.checks + result.checks,
            )
    return made


def traced(found: Recognition | None, file: Path | None, kernel: Path, against: Path | None) -> Traced | None:
    """What `--trace` asks for; None without it.

    Raises:
        InputRefused: the task has no definition, or the kernel is to be timed beside something else.
    """
    if file is None:
        return None
    if found is None or found.format != "flashinfer":
        raise InputRefused(
            "--trace is given, but the problem is no definition.json; traces are of definitions; drop it."
        )
    if against is not None:
        raise InputRefused("--trace times the kernel beside the definition's reference; drop --against.")
    return Traced(found.path, solution_of(kernel).name if kernel.suffix == ".json" else kernel.stem, file)


def kernel_of(path: Path, folder: Path) -> Path:
    """The kernel file that is named: a solution's JSON as one Python file in `folder`, any other as it is.

    Raises:
        ProblemInvalid: the solution is not complete, or not in Python.
    """
    if path.suffix != ".json":
        return path
    try:
        text = kernel_text(solution_of(path))
    except ProblemError as error:
        raise ProblemInvalid(str(error)) from error
    made = folder / "solution.py"
    made.write_text(text, encoding="utf-8")
    return made


def require_same(kernel: Path, found: Recognition | None) -> None:
    """See that a solution is one of this definition; any other kernel says nothing of it.

    Raises:
        InputRefused: it is one of another, or the problem is no definition.
    """
    if kernel.suffix != ".json":
        return
    named = solution_of(kernel).definition
    own = definition_of(found.path).name if found is not None and found.format == "flashinfer" else None
    if named != own:
        raise InputRefused(
            f"{kernel.name} is a solution of {named[:80]!r}, and the problem is {own or 'no definition'!r}; name its "
            "own definition.json."
        )
