"""Solutions in, traces out: what `evaluate` adds for FlashInfer-Bench and SOL-ExecBench.

A trace holds the time of a solution beside that of the definition's reference, so that the reference is what the
solution is timed in turns with.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kopt_mcp.errors import InputRefused, ProblemInvalid, WorkspaceFailed
from kopt_mcp.evaluator.records import Evaluation, WorkloadResult
from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.definitions import definition_of, names_of, workloads_of
from kopt_mcp.problems.solutions import kernel_text, solution_of, trace_of


@dataclass(frozen=True)
class Traced:
    """A definition whose traces are asked for, and the file that they are appended to."""

    found: Recognition
    solution: str
    file: Path

    def reference(self, folder: Path) -> Path:
        """The definition's reference as a kernel file in `folder`."""
        path = folder / "reference.py"
        path.write_text(definition_of(self.found.path).reference, encoding="utf-8")
        return path

    def write(self, checked: Evaluation, timed: Evaluation, hardware: str) -> int:
        """Append a line for each workload of which something was found out; the number of lines.

        Raises:
            WorkspaceFailed: the file cannot be written.
        """
        definition = definition_of(self.found.path)
        given = workloads_of(self.found.path, definition)
        results = _together(checked, timed)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        lines = []
        for name, workload in zip(names_of(given), given, strict=True):
            if (result := results.get(name)) is not None:
                trace = trace_of(definition, workload, self.solution, result, hardware, timed.environment, now)
                lines += [json.dumps(trace, allow_nan=False)] if trace else []
        try:
            with self.file.open("a", encoding="utf-8") as out:
                out.writelines(line + "\n" for line in lines)
        except OSError as error:
            raise WorkspaceFailed(f"{self.file} cannot be written: {error.strerror}; name another file.") from error
        return len(lines)


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
    return Traced(found, _solution_name(kernel), file)


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


def _solution_name(kernel: Path) -> str:
    return solution_of(kernel).name if kernel.suffix == ".json" else kernel.stem


def _together(checked: Evaluation, timed: Evaluation) -> dict[str, Mapping[str, Any]]:
    """Each workload's verdict: the first that is not a pass, with the times of the one and the errors of the other."""
    errors = {r.workload: r for r in checked.workloads}
    times = {r.workload: r for r in timed.workloads}
    return {name: _one(errors.get(name), times.get(name)) for name in {**errors, **times}}


def _one(checked: WorkloadResult | None, timed: WorkloadResult | None) -> Mapping[str, Any]:
    first = checked or timed
    assert first is not None
    made = asdict(first)
    if checked is not None and timed is not None and checked.status == "PASSED":
        made |= {key: asdict(timed)[key] for key in ("status", "detail", "timing", "incumbent")}
        made["checks"] = checked.checks + timed.checks
    return made
