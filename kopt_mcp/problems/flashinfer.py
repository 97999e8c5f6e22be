"""FlashInfer-Bench and SOL-ExecBench: `definition.json`, `workload.jsonl`, and a candidate that defines `run`."""

from __future__ import annotations

from pathlib import Path

from kopt_mcp.problem import ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.definitions import Workload, data_file, definition_of, workload_file, workloads_of
from kopt_mcp.problems.reading import Unlike, json_of, noted, slug

EXPECTED = "a definition.json with axes, inputs, outputs and a reference, and its workload.jsonl"
FILE = "definition.json"
_KEYS = {"axes", "inputs", "outputs", "reference"}


def recognise(path: Path) -> Recognition:
    """Whether a folder, or a file, is a definition with its workloads."""
    main = path / FILE if path.is_dir() else path
    if main.suffix != ".json":
        raise Unlike(f"{path.name} is neither a folder nor a .json file")
    if not main.exists():
        raise Unlike(f"{path.name} holds no {FILE}")
    value = json_of(main)
    if isinstance(value, dict) and {"spec", "sources"} <= set(value):
        raise ProblemError(f"{main.name} is a solution; name the definition as the task, and this as the kernel.")
    if not isinstance(value, dict) or len(_KEYS & set(value)) < 2:
        raise Unlike(f"{main.name} has no {' and no '.join(sorted(_KEYS))}")
    missing: list[str] = []
    workloads: list[Workload] = []
    files = [main, *workload_file(main)]
    with noted(missing):
        workloads = workloads_of(main, definition_of(main))
        named = {str(s["path"]) for w in workloads for s in w.inputs.values() if s["type"] == "safetensors"}
        files += [data_file(main, name) for name in sorted(named)]
    kernel = main.parent / "kernel.py"
    return Recognition(
        format="flashinfer",
        path=main,
        files=tuple(files),
        found=(*sorted(_KEYS & set(value)), f"{len(workloads)} workloads"),
        missing=tuple(missing),
        name=slug(str(value.get("name") or main.resolve().parent.name)),
        kernel=kernel if kernel.is_file() else None,
    )
