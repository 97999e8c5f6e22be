"""AutoKernel: a candidate is a function `kernel_fn`, called by position.

One in CUDA imports AutoKernel's compile helper.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

CANDIDATE = "kernel_fn"


def prepare(spec: Mapping[str, Any]) -> None:
    """Lay AutoKernel's own files beside the candidate, where it brings them along."""
    folder = Path(spec["folder"])
    for name, text in spec["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def entry(module: ModuleType, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate itself.

    Raises:
        ImportError: it defines no function `kernel_fn`, or is of another type than the problem.
    """
    function = getattr(module, CANDIDATE, None)
    if not callable(function):
        raise ImportError(f"the kernel file defines no function {CANDIDATE!r}, which AutoKernel calls")
    if (now := getattr(module, "KERNEL_TYPE", spec["type"])) != spec["type"]:
        raise ImportError(f"the kernel file's KERNEL_TYPE is {str(now)[:40]!r}; the problem is {spec['type']!r}")
    made: Callable[..., Any] = function
    return made
