"""FlashInfer-Bench and SOL-ExecBench: a candidate is `run(inputs...)`, or `run(inputs..., outputs...)`, by position.

Our flat arguments are the inputs in the definition's order, and then which workload it is. Where the candidate writes
into its outputs they are allocated anew for each call, as a function that returns them would.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kopt_mcp.evaluator.generated import key_of, register

CANDIDATE = "run"
FILE = "definition_reference.py"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def prepare(spec: Mapping[str, Any]) -> None:
    """Have inputs drawn as the harness draws them: by the definition's own function, or as rows that add up to one."""
    register_all(spec, _custom(spec) if spec["custom"] else None)


def _custom(spec: Mapping[str, Any]) -> Callable[..., Any]:
    path = Path(spec["folder"]) / FILE
    path.write_text(spec["reference"], encoding="utf-8")
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, spec["custom"])
    return function


def register_all(spec: Mapping[str, Any], custom: Callable[..., Any] | None) -> None:
    """Register what draws the inputs that no recipe describes, for every workload."""
    for workload in spec["workloads"]:
        if workload["custom"] and custom is not None:
            register(custom_key(spec, workload), _drawing(custom, workload))
        for rows in workload["rows"]:
            register(rows_key(rows), _adding_up(rows))


def _drawing(custom: Callable[..., Any], workload: Mapping[str, Any]) -> Callable[[int], Any]:
    """Its tensors, in the order in which the workload names them."""

    def source(seed: int) -> list[torch.Tensor]:
        del seed  # all generators begin at it
        device = torch.empty(0).device
        made = custom(dict(workload["axes"]), device)
        return [made[name] for name in workload["custom"]]

    return source


def _adding_up(rows: Mapping[str, Any]) -> Callable[[int], Any]:
    def source(seed: int) -> list[torch.Tensor]:
        del seed
        return [torch.softmax(torch.randn(rows["shape"]), dim=-1).to(getattr(torch, rows["dtype"]))]

    return source


def custom_key(spec: Mapping[str, Any], workload: Mapping[str, Any]) -> int:
    """The number that a workload's own inputs are drawn under."""
    return key_of("flashinfer", spec["reference"], str(spec["custom"]), repr(sorted(workload["axes"].items())))


def rows_key(rows: Mapping[str, Any]) -> int:
    """The number that rows of one shape are drawn under."""
    return key_of("rows", repr(rows["shape"]), rows["dtype"], rows["name"])


def entry(module: ModuleType, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate as a function of flat arguments.

    Raises:
        ImportError: the candidate defines no function `run`, or one that takes neither the inputs nor also the outputs.
    """
    candidate = getattr(module, CANDIDATE, None)
    if not callable(candidate):
        raise ImportError(f"the kernel file defines no function {CANDIDATE!r}, which the definition's inputs go to")
    workloads, device = spec["workloads"], spec["device"]
    if not _takes_outputs(candidate, module, spec):

        def returning(*args: Any) -> Any:
            returned = candidate(*args[:-1])
            if isinstance(returned, torch.Tensor):
                return returned
            return outputs_of(returned, spec["outputs"], workloads[args[-1]]["outputs"], device)

        return returning

    def writing(*args: Any) -> Any:
        outputs = [
            torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            for shape, dtype in workloads[args[-1]]["outputs"]
        ]
        candidate(*args[:-1], *outputs)
        return tuple(outputs)

    return writing


def _takes_outputs(candidate: Callable[..., Any], module: ModuleType, spec: Mapping[str, Any]) -> bool:
    """Whether outputs are handed in: as the solution says, else by how many arguments there are."""
    told = getattr(module, "DESTINATION_PASSING", None)
    if isinstance(told, bool):
        return told
    try:
        parameters = inspect.signature(candidate).parameters.values()
    except (TypeError, ValueError):
        return False
    names = [p.name for p in parameters if p.kind in _POSITIONAL]
    with_outputs: int = spec["inputs"] + len(spec["outputs"])
    return len(names) >= with_outputs


def outputs_of(returned: Any, names: list[str], outputs: list[Any], device: Any) -> Any:
    """Outputs in the definition's order, a number as a tensor without dimensions.

    Raises:
        KeyError: an output is missing from a dict.
    """
    if isinstance(returned, dict):
        returned = [returned[name] for name in names]
    if isinstance(returned, (int, float, bool)):
        returned = [returned]
    if not isinstance(returned, (tuple, list)):
        return returned
    return tuple(
        torch.tensor(one, dtype=getattr(torch, dtype), device=device) if isinstance(one, (int, float, bool)) else one
        for one, (_, dtype) in zip(returned, outputs, strict=True)
    )
