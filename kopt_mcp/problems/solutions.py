"""Solutions of FlashInfer-Bench and SOL-ExecBench read, and their traces written.

A *solution* is a kernel with its sources. A *trace* is the result of one solution on one workload. Standard library
only; nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt_mcp.problem import ProblemError
from kopt_mcp.problems.definitions import Definition, Workload
from kopt_mcp.problems.reading import field, json_of

PYTHON = {"python", "pytorch", "triton", "cute_dsl", "cutile", "cudnn_frontend", "tilelang"}
"""Languages whose entry is a Python function."""


@dataclass(frozen=True)
class Solution:
    """A kernel in Python, with all its sources."""

    name: str
    definition: str
    file: str
    function: str
    destination: bool
    """Whether outputs are handed in, after the inputs."""
    sources: Mapping[str, str]


def solution_of(path: Path) -> Solution:
    """Read and check a solution.

    Raises:
        ProblemError: file, field, and what was expected; or it is not in Python.
    """
    value, where = json_of(path), f"{path.name}: spec"
    spec = field(value, "spec", dict, path.name)
    given = spec.get("languages") if isinstance(spec.get("languages"), list) else [field(spec, "language", str, where)]
    languages = [str(one) for one in given or ()]
    if not languages or not set(languages) <= PYTHON:
        raise ProblemError(
            f"{where}: field 'languages' is {languages}; expected languages whose entry is a Python function: "
            f"{', '.join(sorted(PYTHON))}. For CUDA C++ give the .cu file as the kernel of a problem of its own."
        )
    file, _, function = field(spec, "entry_point", str, where).partition("::")
    sources: dict[str, str] = {}
    for number, one in enumerate(field(value, "sources", list, path.name)):
        here = f"{path.name}: sources[{number}]"
        name = field(one, "path", str, here)
        if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", name, re.ASCII) or name in sources:
            raise ProblemError(f"{here}: field 'path' is {name[:60]!r}; expected a relative path, given once.")
        sources[name] = field(one, "content", str, here)
    if file not in sources or not file.endswith(".py") or not function.isidentifier():
        raise ProblemError(
            f"{where}: field 'entry_point' is no 'file.py::function' among the sources {sorted(sources)[:8]}."
        )
    return Solution(
        name=field(value, "name", str, path.name),
        definition=field(value, "definition", str, path.name),
        file=file,
        function=function,
        destination=bool(spec.get("destination_passing_style", True)),
        sources=sources,
    )


def kernel_text(solution: Solution) -> str:
    """One Python file that does what a solution does: its sources, laid beside it when it is imported."""
    module = solution.file.removesuffix(".py").replace("/", ".")
    return f'''"""A solution as one file: its sources are laid beside it when it is imported."""

import importlib
import sys
from pathlib import Path

SOURCES = {dict(solution.sources)!r}
DESTINATION_PASSING = {solution.destination!r}

_folder = Path(__file__).resolve().parent / "solution"
for _name, _text in SOURCES.items():
    (_folder / _name).parent.mkdir(parents=True, exist_ok=True)
    (_folder / _name).write_text(_text, encoding="utf-8")
sys.path.insert(0, str(_folder))
sys.modules.pop(__name__, None)  # a source may be called as this file is
importlib.invalidate_caches()
run = getattr(importlib.import_module({module!r}), {solution.function!r})
'''


STATUSES = {
    "PASSED": "PASSED",
    "INCORRECT_SHAPE": "INCORRECT_SHAPE",
    "INCORRECT_DTYPE": "INCORRECT_DTYPE",
    "INCORRECT_NUMERICAL": "INCORRECT_NUMERICAL",
    "COMPILE_ERROR": "COMPILE_ERROR",
    "RUNTIME_ERROR": "RUNTIME_ERROR",
    "TIMEOUT": "TIMEOUT",
    "OUT_OF_MEMORY": "RUNTIME_ERROR",
    "CHEATED": "REWARD_HACK",
    "SUSPECT": "REWARD_HACK",
    "INVALID_PROBLEM": "INVALID_REFERENCE",
}
"""Our statuses in their words; those that are left out say nothing about the solution, and leave no trace."""
ONLY_SOL = ("REWARD_HACK", "INVALID_REFERENCE")
"""Statuses that FlashInfer-Bench has no word for: it would refuse the trace, so that none is written."""


def trace_of(
    definition: Definition,
    workload: Workload,
    solution: str,
    result: Mapping[str, Any],
    hardware: str,
    libs: Mapping[str, str],
    timestamp: str,
) -> dict[str, Any] | None:
    """One line of a trace file; None where nothing was found out about the solution.

    Args:
        result: a `WorkloadResult` as a dict; where the solution was timed beside the reference, the reference is the
            incumbent.
    """
    status = STATUSES.get(result["status"])
    if workload.in_trace and status in ONLY_SOL:
        status = None
    timing, incumbent = result.get("timing"), result.get("incumbent")
    if status is None or (status == "PASSED" and (timing is None or incumbent is None)):
        return None
    correctness = performance = None
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        correctness = {
            "max_relative_error": result.get("max_rel_error") or 0.0,
            "max_absolute_error": result.get("max_abs_error") or 0.0,
            "extra": {"share_of_allowed_error": result.get("error_ratio"), "checks": result.get("checks")},
        }
    if status == "PASSED" and timing and incumbent:
        performance = {
            "latency_ms": timing["latency_us"] / 1e3,
            "reference_latency_ms": incumbent["latency_us"] / 1e3,
            "speedup_factor": incumbent["latency_us"] / timing["latency_us"],
        }
    return {
        "definition": definition.name,
        "workload": dict(workload.written),
        "solution": solution,
        "evaluation": {
            "status": status,
            "log": result.get("detail", ""),
            "correctness": correctness,
            "performance": performance,
            "environment": {"hardware": hardware, "libs": dict(libs)},
            "timestamp": timestamp,
        },
    }
