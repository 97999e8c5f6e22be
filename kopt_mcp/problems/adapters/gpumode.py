"""GPU MODE: a candidate is a function `custom_kernel(data)`, which imports `task` and `utils` from beside it.

Our flat arguments are the tensors of what `generate_input` returns, and then which workload it is: the nest around them
is put together again for each.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kopt_mcp.evaluator.generated import flatten, key_of, rebuild, register

CANDIDATE = "custom_kernel"
REFERENCE = "reference"
GENERATOR = "generate_input"
SEED = "seed"


def prepare(spec: Mapping[str, Any]) -> None:
    """Lay the task's files beside the candidate, and have its inputs drawn by `generate_input`."""
    folder = Path(spec["folder"])
    for name, text in spec["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    generate = getattr(importlib.import_module(REFERENCE), GENERATOR)
    for workload in spec["workloads"]:
        register(key(spec["files"], workload["given"]), source(generate, workload["given"]))


def entry(module: ModuleType, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate as a function of flat arguments.

    Raises:
        ImportError: the candidate defines no function `custom_kernel`.
    """
    candidate = getattr(module, CANDIDATE, None)
    if not callable(candidate):
        raise ImportError(f"the kernel file defines no function {CANDIDATE!r}, which GPU MODE calls")
    nests = [workload["nest"] for workload in spec["workloads"]]

    def call(*args: Any) -> Any:
        returned = candidate(rebuild(nests[args[-1]], args))
        if returned is None or isinstance(returned, torch.Tensor):
            return returned
        return tuple(flatten(returned)[0])

    return call


def source(generate: Callable[..., Any], given: Mapping[str, Any]) -> Callable[[int], Any]:
    """A source for `generated`: the task's own inputs for one of its tests, under a seed of ours."""
    return lambda seed: generate(**{**given, **({SEED: seed} if SEED in given else {})})


def key(files: Mapping[str, str], given: Mapping[str, Any]) -> int:
    """The number that the inputs of one workload are drawn under."""
    return key_of("gpumode", *(f"{name}\0{text}" for name, text in sorted(files.items())), repr(sorted(given.items())))
