"""AutoKernel: a candidate is a function `kernel_fn`, called by position; one in CUDA imports a compile helper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from kopt_mcp.problems.adapters import function_of, laid_beside

CANDIDATE = "kernel_fn"


def prepare(spec: Mapping[str, Any]) -> None:
    """Lay AutoKernel's own files beside the candidate, where it brings them along."""
    laid_beside(spec, spec["files"])


def entry(module: ModuleType, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate itself; ImportError where it is of another type than the problem."""
    function = function_of(module, CANDIDATE)
    if (now := getattr(module, "KERNEL_TYPE", spec["type"])) != spec["type"]:
        raise ImportError(f"the kernel file's KERNEL_TYPE is {str(now)[:40]!r}; the problem is {spec['type']!r}")
    return function
