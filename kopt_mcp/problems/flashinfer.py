"""FlashInfer-Bench and SOL-ExecBench: `definition.json`, `workload.jsonl`, and a candidate that defines `run`.

The definition says shapes and types, so that bytes are counted from it; its reference is run in float64, whatever it
says of float32. Inputs that are random are drawn by recipes of ours, inputs from files are the same in every call,
inputs that the definition draws itself are drawn by its own function under our seeds. A candidate returns its outputs,
or writes into those that it is handed, which its signature tells.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from kopt_mcp.problem import Problem, ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import json_of
from kopt_mcp.problems.workloads import Definition, Workload, definition_of, workloads_of

NAME = "flashinfer"
EXPECTED = "a definition.json with axes, inputs, outputs and a reference, and its workload.jsonl"
FILE = "definition.json"
WORKLOADS = ("workload.jsonl", "workloads.jsonl")
_KEYS = {"axes", "inputs", "outputs", "reference"}
_UP = 6
"""Folders above a definition in which the files may lie that its workloads name."""


def recognise(path: Path) -> Recognition | str:
    """Whether a folder, or a file, is a definition with its workloads."""
    main = path / FILE if path.is_dir() else path
    if main.suffix != ".json":
        return f"{path.name} is neither a folder nor a .json file; expected {EXPECTED}."
    if not main.exists():
        return f"{path.name} holds no {FILE}; expected {EXPECTED}."
    value = json_of(main)
    if isinstance(value, dict) and {"spec", "sources"} <= set(value):
        return f"{main.name} is a solution; name the definition as the task, and this as the kernel."
    if not isinstance(value, dict) or len(_KEYS & set(value)) < 2:
        return f"{main.name} has no {' and no '.join(sorted(_KEYS))}; expected {EXPECTED}."
    missing: list[str] = []
    definition = workloads = None
    file = workload_file(main)
    try:
        definition = definition_of(main)
        if file is None:
            missing.append(f"{main.name} has no {WORKLOADS[0]} beside it; expected the workloads, one a line")
        else:
            workloads = workloads_of(file, definition)
    except ProblemError as error:
        missing.append(str(error).rstrip("."))
    data: list[Path] = []
    try:
        data = _data_files(main, workloads or [])
    except ProblemError as error:
        missing.append(str(error).rstrip("."))
    kernel = main.parent / "kernel.py"
    return Recognition(
        format=NAME,
        path=main,
        files=(main, *([file] if file else ()), *data),
        found=(*sorted(_KEYS & set(value)), f"{len(workloads or [])} workloads"),
        missing=tuple(missing),
        name=_name(definition, main),
        kernel=kernel if kernel.is_file() else None,
    )


def _name(definition: Definition | None, main: Path) -> str:
    text = definition.name if definition else main.resolve().parent.name
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80] or NAME


def workload_file(main: Path) -> Path | None:
    """Beside the definition, or where the FlashInfer-Trace data set has it: `workloads/` in place of `definitions/`."""
    for name in WORKLOADS:
        if (main.parent / name).is_file():
            return main.parent / name
    parts = main.parts
    if "definitions" in parts:
        at = len(parts) - 1 - parts[::-1].index("definitions")
        there = Path(*parts[:at], "workloads", *parts[at + 1 :]).with_suffix(".jsonl")
        return there if there.is_file() else None
    return None


def _data_files(main: Path, workloads: list[Workload]) -> list[Path]:
    """Files that workloads take inputs from, each once.

    Raises:
        ProblemError: one is not there.
    """
    names = {str(s["path"]) for w in workloads for s in w.inputs.values() if s["type"] == "safetensors"}
    return [data_file(main, name) for name in sorted(names)]


def data_file(main: Path, name: str) -> Path:
    """The file that a workload names, relative to the definition's folder or to one above it.

    Raises:
        ProblemError: it is in none of them.
    """
    plain = "\0" not in name and not name.startswith("/") and ".." not in Path(name).parts
    for folder in [main.resolve().parent, *main.resolve().parents[1:_UP]] if plain else []:
        if (folder / name).is_file():
            return folder / name
    raise ProblemError(
        f"{main.name}: a workload takes an input from {name[:120]!r}, which is not there; fetch it first."
    )


def load(
    path: Path,
    *,
    kernel: Path | None = None,
    precision: Literal["ieee", "tf32"] = "ieee",
) -> Problem:
    """Execute a definition's reference and express it as a `Problem`.

    Args:
        precision: `tf32` lets float32 products be rounded to 10 bits.

    Raises:
        ProblemError: it does not load, or cannot be a problem; the text names file, field and reason.
    """
    from kopt_mcp.problems.definitions import problem_of

    del kernel
    if precision not in ("ieee", "tf32"):
        raise ProblemError(f"{path.name}: option precision is {precision!r}; expected 'ieee' or 'tf32'.")
    definition = definition_of(path)
    file = workload_file(path)
    if file is None:
        raise ProblemError(f"{path.name} has no {WORKLOADS[0]} beside it; expected the workloads, one a line.")
    workloads = workloads_of(file, definition)
    return problem_of(_name(definition, path), definition, workloads, precision, lambda name: data_file(path, name))
