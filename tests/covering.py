"""A plugin of coverage: lets the evaluator's processes write down which lines they have run.

Those that are shut in may write into one folder more, a harness is given time to end by itself where it is killed in
use, and what is started with a small environment is told of it. Only where coverage runs: the evaluator knows nothing
of this and cannot be asked for it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from coverage.plugin_support import Plugins

FOLDER = Path(__file__).resolve().parent.parent / ".coverage.d"
"""Where pyproject.toml has coverage put its data."""
_END_S = 20.0
"""Longest time that a harness gets."""


def _opened(sandbox: Any) -> None:
    """Have what is shut in write into the folder too."""
    landlock = sandbox._landlock
    sandbox._landlock = lambda libc, readable, writable: landlock(libc, readable, [*writable, str(FOLDER)])


def _patient(client: Any) -> None:
    """Have a harness that answers nothing any more end by itself, before it is killed."""
    close, request = client.LocalEvaluator.close, client._HarnessProcess.request

    def end(harness: Any) -> None:
        harness._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            harness._process.wait(_END_S)

    def patient_close(self: Any) -> None:
        for harness in self._harnesses.values():
            end(harness)
        close(self)

    def patient_request(self: Any, *arguments: Any) -> Any:
        try:
            return request(self, *arguments)
        except client._Outlived:
            end(self)
            raise

    client.LocalEvaluator.close, client._HarnessProcess.request = patient_close, patient_request


def _told(launching: Any) -> None:
    """Have what runs a compiler or a profiled call, and knows little of our environment, be measured too."""
    launching.KEPT = (*launching.KEPT, "COVERAGE_PROCESS_CONFIG")


def _seen(own_files: Any) -> None:
    """Have Python trace what it tells of files that are opened; it does not by itself."""
    own_files._audited.__cantrace__ = True


_CHANGES = {
    "kopt_mcp.evaluator.sandbox": _opened,
    "kopt_mcp.evaluator.client": _patient,
    "kopt_mcp.evaluator.own_files": _seen,
    "kopt_mcp.platforms.launching": _told,
}


class _Changed(MetaPathFinder):
    """Finds these modules as ever, and changes them once they are there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _CHANGES else None
        if spec is None or spec.loader is None:
            return None
        as_ever = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            as_ever(module)
            _CHANGES[fullname](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def coverage_init(registry: Plugins, options: dict[str, Any]) -> None:
    """Called by coverage in every process that it begins in, and again after a fork."""
    FOLDER.mkdir(exist_ok=True)
    if not any(isinstance(finder, _Changed) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Changed())
