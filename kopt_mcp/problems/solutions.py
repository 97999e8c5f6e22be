"""Solutions of FlashInfer-Bench and SOL-ExecBench: kernels with their sources. Nothing is executed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kopt_mcp.problem import ProblemError
from kopt_mcp.problems.reading import field, json_of

PYTHON = {"python", "pytorch", "triton", "cute_dsl", "cutile", "cudnn_frontend", "tilelang"}
"""Languages whose entry is a Python function."""


@dataclass(frozen=True)
class Solution:
    """A kernel in Python, with all its sources."""

    name: str
    definition: str
    file: str
    function: str
    destination: bool
    """Whether outputs are handed in, after the inputs."""
    sources: dict[str, str]


def solution_of(path: Path) -> Solution:
    """Read and check a solution."""
    value, where = json_of(path), f"{path.name}: spec"
    spec = field(value, "spec", dict, path.name)
    given = spec.get("languages") if isinstance(spec.get("languages"), list) else [field(spec, "language", str, where)]
    languages = [str(one) for one in given or ()]
    if not languages or not set(languages) <= PYTHON:
        raise ProblemError(
            f"{where}: field 'languages' is {languages}; expected languages whose entry is a Python function: "
            f"{', '.join(sorted(PYTHON))}. For CUDA C++ give the .cu file as the kernel of a problem of its own."
        )
    file, _, function = field(spec, "entry_point", str, where).partition("::")
    sources: dict[str, str] = {}
    for number, one in enumerate(field(value, "sources", list, path.name)):
        here = f"{path.name}: sources[{number}]"
        name = field(one, "path", str, here)
        if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", name, re.ASCII) or name in sources:
            raise ProblemError(f"{here}: field 'path' is {name[:60]!r}; expected a relative path, given once.")
        sources[name] = field(one, "content", str, here)
    if file not in sources or not file.endswith(".py") or not function.isidentifier():
        raise ProblemError(
            f"{where}: field 'entry_point' is no 'file.py::function' among the sources {sorted(sources)[:8]}."
        )
    return Solution(
        name=field(value, "name", str, path.name),
        definition=field(value, "definition", str, path.name),
        file=file,
        function=function,
        destination=bool(spec.get("destination_passing_style", True)),
        sources=sources,
    )


def kernel_text(solution: Solution) -> str:
    """One Python file that does what a solution does: its sources, laid beside it when it is imported."""
    module = solution.file.removesuffix(".py").replace("/", ".")
    return f'''"""A solution as one file: its sources are laid beside it when it is imported."""

import importlib
import sys
from pathlib import Path

SOURCES = {solution.sources!r}
DESTINATION_PASSING = {solution.destination!r}

_folder = Path(__file__).resolve().parent / "solution"
for _name, _text in SOURCES.items():
    (_folder / _name).parent.mkdir(parents=True, exist_ok=True)
    (_folder / _name).write_text(_text, encoding="utf-8")
sys.path.insert(0, str(_folder))
sys.modules.pop(__name__, None)  # a source may be called as this file is
importlib.invalidate_caches()
run = getattr(importlib.import_module({module!r}), {solution.function!r})
'''
