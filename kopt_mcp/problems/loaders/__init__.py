"""Make a `Problem` of a task that was recognised. Harness only: standard library and torch.

A loader is a module here of its format's name, with `load(path, **options) -> Problem`; `options` are what `recognise`
read, and what the user may write into the problem file. It raises ProblemError where the task does not load, or cannot
be a problem: file, field and reason are named. Here is what loaders share.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import traceback
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kopt_mcp.evaluator.generated import placed
from kopt_mcp.problem import DISTRIBUTIONS, Make, Problem, ProblemError, Spec, Workload
from kopt_mcp.problems.adapters import laid
from kopt_mcp.problems.loaders.counting import Costs, bound_of, devices_of
from kopt_mcp.problems.reading import distinct

Recipe = Spec | torch.Tensor | int | float | bool | str
"""How one input comes about: drawn, the same in every call, or a plain value."""


@dataclass(frozen=True)
class TaskWorkload:
    """One workload of a task, whose costs are those of the task's reference."""

    name: str
    dtype: str
    recipes: Sequence[Recipe]
    moved: int
    """Bytes that go in and come out."""
    costs: Costs | None
    timed: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)
    """Further ones, besides those that are set for all tasks."""


def problem_of(name: str, given: Sequence[TaskWorkload], *, precision: Any, **fields: Any) -> Problem:
    """The problem of these workloads; `fields` are its others, or instead of what is chosen here.

    Behind the inputs of a call comes which workload it is: for the reference, and for the adapter.
    """
    one_of("precision", precision, ("ieee", "tf32"))
    largest = max(given, key=lambda one: one.moved)
    kinds = {r.kind if isinstance(r, Spec) else "literal" for one in given for r in one.recipes if is_tensor(r)}
    whole = kinds <= {"normal", "uniform"} and all(one.costs and not one.costs.partial for one in given)

    def inputs(make: Make, which: int, **_: Any) -> list[Any]:
        return [*(make.literal(r) if isinstance(r, torch.Tensor) else r for r in given[which].recipes), which]

    chosen: dict[str, Any] = {
        "inputs": inputs,
        "distributions": DISTRIBUTIONS if "normal" in kinds else ("normal",),
        # Operations never: what is summed up after a product can often be summed up before it.
        "certain": ("bytes",) if whole else (),
    }
    return Problem(
        name=name,
        workloads=_workloads(given),
        bytes="moved",
        flops="operations",
        reduction="longest",
        bound=bound_of(largest.moved, largest.costs),
        precision=precision,
        **{**chosen, **fields},
    )


def _workloads(given: Sequence[TaskWorkload]) -> list[Workload]:
    names = distinct([one.name for one in given])
    made = []
    for which, (one, name) in enumerate(zip(given, names, strict=True)):
        costs = one.costs or Costs(output_bytes=0, flops=0.0, longest=1, partial=True)
        params = {"which": which, "moved": one.moved, "operations": costs.flops, "longest": costs.longest}
        devices = devices_of(one.moved, one.dtype)
        made.append(Workload({**params, **one.params}, one.dtype, devices, one.timed, name))
    return made


def is_tensor(recipe: Any) -> bool:
    """Whether a recipe is of a tensor, and not a plain value."""
    return isinstance(recipe, (Spec, torch.Tensor))


def size_of(recipes: Sequence[Recipe]) -> int:
    """Bytes of all tensors."""
    tensors = [r for r in recipes if isinstance(r, (Spec, torch.Tensor))]
    return sum(math.prod(t.shape) * getattr(torch, str(t.dtype).removeprefix("torch.")).itemsize for t in tensors)


def floating(dtypes: Sequence[str]) -> str:
    """The first floating type, else the first."""
    return next((name for name in dtypes if getattr(torch, name).is_floating_point), dtypes[0])


def device_of(args: Sequence[Any]) -> str:
    """Where the tensors of a call are."""
    return next((str(a.device) for a in args if isinstance(a, torch.Tensor)), "cpu")


def here() -> str:
    """The device that a task's code runs on while it is described."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def one_of(option: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse an option of the problem file that is none of these."""
    if value not in choices:
        raise ProblemError(f"option {option} is {value!r}; expected one of {', '.join(choices)}.")


def words(error: Exception) -> str:
    """What went wrong in a task's own code."""
    return f"{type(error).__name__}: {str(error)[:300]}"


def staged(files: Mapping[str, str], main: str, needed: Sequence[str], what: str) -> ModuleType:
    """Execute one of a task's files among the others, in a folder that is there as long as the module."""
    folder = Path(tempfile.mkdtemp(prefix="task-"))
    laid(folder, files)
    try:
        with placed(here()):
            module = executed(folder / main, Path(main).stem)
    except ProblemError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(module, shutil.rmtree, folder, ignore_errors=True)
    for name in needed:
        if not callable(getattr(module, name, None)):
            raise ProblemError(f"{what} defines no {name}; expected a function.")
    return module


def executed(path: Path, name: str = "task") -> ModuleType:
    """Execute a Python file of a task, with its folder on the path, and return it as a module."""
    made = ModuleType(name)
    made.__file__ = str(path)
    try:
        with beside(path):
            sys.modules[name] = made  # dataclasses and pickles look their module up
            exec(compile(path.read_bytes(), str(path), "exec"), made.__dict__)
    except Exception as error:
        frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = getattr(error, "lineno", None) or (frames[-1] if frames else None)
        raise ProblemError(f"{path.name} does not load: line {line}: {words(error)}") from error
    finally:
        sys.modules.pop(name, None)
    return made


@contextmanager
def beside(path: Path) -> Iterator[None]:
    """Let modules that lie beside `path` be imported, and forget them afterwards: two tasks may both have a `utils`."""
    before = set(sys.modules)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(folder + os.sep):
                del sys.modules[name]
