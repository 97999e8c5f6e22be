"""FlashInfer-Bench and SOL-ExecBench: a candidate is `run(inputs...)`, or `run(inputs..., outputs...)`, by position.

Our flat arguments are the inputs in the definition's order, and then which workload it is. Where the candidate writes
into its outputs they are allocated anew for each call, as a function that returns them would.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from kopt_mcp.evaluator.generated import register
from kopt_mcp.problems.adapters import function_of, laid_beside

CANDIDATE = "run"
MODULE = "definition_reference"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def prepare(spec: Mapping[str, Any]) -> None:
    """Have inputs drawn as the harness draws them: by the definition's own function, or as rows that add up to one."""
    custom = None
    if any(workload["custom"] for workload in spec["workloads"]):
        laid_beside(spec, {f"{MODULE}.py": spec["reference"]})
        custom = getattr(importlib.import_module(MODULE), spec["custom"])
    for workload in spec["workloads"]:
        register_inputs(custom, workload)


def register_inputs(custom: Callable[..., Any] | None, workload: Mapping[str, Any]) -> None:
    """Register what draws the inputs of a workload that no recipe describes."""
    if custom is not None and workload["custom"]:
        register(workload["key"], _drawing(custom, workload))
    for rows in workload["rows"]:
        register(rows["key"], _adding_up(rows))


def _drawing(custom: Callable[..., Any], workload: Mapping[str, Any]) -> Callable[[int], Any]:
    """Its tensors, in the order in which the workload names them."""

    def source(seed: int) -> list[torch.Tensor]:
        del seed  # all generators begin at it
        made = custom(dict(workload["axes"]), torch.empty(0).device)
        return [made[name] for name in workload["custom"]]

    return source


def _adding_up(rows: Mapping[str, Any]) -> Callable[[int], Any]:
    dtype = getattr(torch, rows["dtype"])
    return lambda seed: torch.softmax(torch.randn(rows["shape"]), dim=-1).to(dtype)


def entry(module: ModuleType, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate as a function of flat arguments, whether it returns its outputs or writes into them."""
    candidate, device = function_of(module, CANDIDATE), spec["device"]
    outputs = [[(shape, getattr(torch, dtype)) for shape, dtype in one["outputs"]] for one in spec["workloads"]]

    def returning(*args: Any) -> Any:
        returned = candidate(*args[:-1])
        if isinstance(returned, torch.Tensor):
            return returned
        return outputs_of(returned, spec["outputs"], [dtype for _, dtype in outputs[args[-1]]], device)

    def writing(*args: Any) -> Any:
        made = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in outputs[args[-1]]]
        candidate(*args[:-1], *made)
        return tuple(made)

    return writing if _takes_outputs(candidate, module, spec) else returning


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


def outputs_of(returned: Any, names: list[str], dtypes: list[torch.dtype], device: Any) -> Any:
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
        torch.tensor(one, dtype=dtype, device=device) if isinstance(one, (int, float, bool)) else one
        for one, dtype in zip(returned, dtypes, strict=True)
    )
