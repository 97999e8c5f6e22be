"""How a candidate of a foreign format is called: one module a format, for the runner, on the untrusted side.

`Problem.adapter` names a module here, `Problem.adapter_spec` is handed to it as JSON, and with it the `device` that the
inputs are on (`cpu` or `cuda`). The module has

    entry(module, spec) -> callable
    prepare(spec)                       optional, called before the candidate is imported, whose folder is in
                                        `spec["folder"]`: lays files there that it imports, registers what draws inputs

`entry` takes the imported candidate and returns a function of our flat arguments (the problem's inputs, in order,
outputs returned as one tensor or a tuple of tensors). It is called once, when the candidate is loaded; the function is
what is checked and timed, so that all it does costs time. It may raise whatever it likes: the candidate's fault then.

Standard library and torch only. Every module is imported before the runner is shut in, where it could not be read.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any


def preload() -> None:
    """Import every adapter, so that a process that is shut in has them."""
    for found in pkgutil.iter_modules(__path__):
        _module(found.name)


def prepare(name: str, spec: Mapping[str, Any]) -> None:
    """Whatever the adapter needs before the candidate is imported."""
    if hasattr(_module(name), "prepare"):
        _module(name).prepare(spec)


def entry(name: str, module: ModuleType, spec: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate as a function of flat arguments, through the adapter `name`."""
    made: Callable[..., Any] = _module(name).entry(module, spec)
    return made


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")


def function_of(module: ModuleType, name: str) -> Callable[..., Any]:
    """The function that a candidate must define.

    Raises:
        ImportError: it does not, which makes the evaluation a `COMPILE_ERROR`.
    """
    function = getattr(module, name, None)
    if not callable(function):
        raise ImportError(f"the kernel file defines no function {name!r}, which its format calls")
    return function  # type: ignore[no-any-return]


def laid(folder: Path, files: Mapping[str, str]) -> None:
    """Write a task's files below a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def laid_beside(spec: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Write a task's files beside the candidate, which may import them."""
    laid(Path(spec["folder"]), files)
    sys.path.insert(0, spec["folder"])
    importlib.invalidate_caches()
