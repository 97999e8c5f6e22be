"""Get at a Python candidate's function: for the runner, and for the process that a profiler watches."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kopt_mcp.evaluator.native import BuildError
from kopt_mcp.problems import adapters

adapters.preload()


def imported(source: Path, entry: str, adapter: str, adapter_spec: dict[str, Any]) -> Callable[..., Any]:
    """The function of a Python candidate that takes the problem's inputs.

    Raises:
        BuildError: the file defines none of that name.
    """
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if adapter:
        adapters.prepare(adapter, {**adapter_spec, "folder": str(source.parent)})
    sys.modules[source.stem] = module
    spec.loader.exec_module(module)
    if adapter:
        return adapters.entry(adapter, module, adapter_spec)
    function = getattr(module, entry, None)
    if not callable(function):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == source.stem]
        raise BuildError(
            f"the kernel file defines no function {entry!r}, which the problem calls; it defines "
            f"{', '.join(own[:10]) or 'none'}"
        )
    return function  # type: ignore[no-any-return]
