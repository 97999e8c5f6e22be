"""How a candidate of a foreign format is called: one module a format, for the runner, on the untrusted side.

`Problem.adapter` names a module here, `Problem.adapter_spec` is handed to it as JSON, and with it the `device` that the
inputs are on. The module has

    entry(module, spec) -> callable
    prepare(spec)                       optional, called before the candidate is imported, whose folder is in
                                        `spec["folder"]`: lays files there that it imports, registers what draws inputs

which takes the imported candidate and returns a function of our flat arguments (the problem's inputs, in order, outputs
returned as one tensor or a tuple of tensors). It is called once, when the candidate is loaded; the function is what is
checked and timed, so that all it does costs time. `spec` also holds `device`, which is `cpu` or `cuda`. It may raise
whatever it likes: it is the candidate's fault then.

Standard library and torch only. Every module is imported before the runner is shut in, where it could not be read.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

NAMES = tuple(sorted(found.name for found in pkgutil.iter_modules(__path__)))
"""The adapters that there are."""


def preload() -> None:
    """Import every adapter, so that a process that is shut in has them."""
    for name in NAMES:
        importlib.import_module(f"{__name__}.{name}")


def prepare(name: str, spec: Mapping[str, Any]) -> None:
    """Whatever the adapter needs before the candidate is imported."""
    adapter = importlib.import_module(f"{__name__}.{name}")
    if hasattr(adapter, "prepare"):
        adapter.prepare(spec)


def entry(name: str, module: ModuleType, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate as a function of flat arguments, through the adapter `name`."""
    adapter = importlib.import_module(f"{__name__}.{name}")
    made: Callable[..., Any] = adapter.entry(module, spec)
    return made


def needed(module: ModuleType, name: str) -> Any:
    """What a candidate must define.

    Raises:
        ImportError: it does not, which makes the evaluation a `COMPILE_ERROR`.
    """
    if not hasattr(module, name):
        raise ImportError(f"the kernel file defines no {name!r}, which the problem calls")
    return getattr(module, name)
