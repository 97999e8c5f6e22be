"""GPU MODE: a candidate is a function `custom_kernel(data)`, which imports `task` and `utils` from beside it.

Our flat arguments are the tensors of what `generate_input` returns, and then which workload it is: the nest around them
is put together again for each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from kopt_mcp.evaluator.generated import flatten, key_of, rebuild, register
from kopt_mcp.problems.adapters import function_of, laid_beside

CANDIDATE = "custom_kernel"
SEED = "seed"


def prepare(spec: Mapping[str, Any]) -> None:
    """Lay the task's files beside the candidate, and have its inputs drawn by `generate_input`."""
    laid_beside(spec, spec["files"])
    generate = importlib.import_module("reference").generate_input
    for workload in spec["workloads"]:
        register_inputs(spec["files"], generate, workload["given"])


def register_inputs(files: Mapping[str, str], generate: Callable[..., Any], given: Mapping[str, Any]) -> int:
    """Have the inputs of a test drawn by the task's own function, under a seed of ours; the key that they get."""
    key = key_of("gpumode", *(f"{name}\0{text}" for name, text in sorted(files.items())), repr(sorted(given.items())))
    register(key, lambda seed: generate(**{**given, **({SEED: seed} if SEED in given else {})}))
    return key


def entry(module: ModuleType, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate as a function of flat arguments."""
    candidate = function_of(module, CANDIDATE)
    nests = [workload["nest"] for workload in spec["workloads"]]

    def call(*args: Any) -> Any:
        returned = candidate(rebuild(nests[args[-1]], args))
        if returned is None or isinstance(returned, torch.Tensor):
            return returned
        return tuple(flatten(returned)[0])

    return call
