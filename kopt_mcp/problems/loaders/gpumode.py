"""A task of GPU MODE as a problem: its inputs are a nest that the task's own code draws.

Inputs are drawn by `generate_input`, at the sizes of the task's tests and benchmarks, under seeds of ours. Outputs are
judged twice: by our comparison with `ref_kernel` in float64, and by the task's own check; both must let them pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from kopt_mcp.evaluator.generated import SEEDS, Unusable, drawn, flatten, placed, rebuild, seeded
from kopt_mcp.problem import Problem, ProblemError, Spec
from kopt_mcp.problems.adapters import gpumode as adapter
from kopt_mcp.problems.gpumode import FUNCTIONS
from kopt_mcp.problems.loaders import TaskWorkload, device_of, floating, here, problem_of, size_of, staged, words
from kopt_mcp.problems.loaders.counting import counted, devices_of, on_shapes
from kopt_mcp.problems.loaders.exact import exact, spread
from kopt_mcp.problems.reading import slug, text_of


@dataclass(frozen=True)
class Test:
    """One test or benchmark of a task: its arguments, and what `generate_input` makes of them."""

    given: Mapping[str, Any]
    key: int
    nest: Any
    workload: TaskWorkload


@dataclass(frozen=True)
class Lent:
    """What the reference does to its inputs, and how it returns its outputs."""

    written: tuple[int, ...]
    """Inputs that it overwrites."""
    returned: Any
    """The nest of what it returns; None where it returns nothing."""


def load(
    path: Path,
    *,
    files: Mapping[str, str],
    tests: Sequence[Mapping[str, Any]],
    benchmarks: Sequence[Mapping[str, Any]] = (),
    precision: Literal["ieee", "tf32"] = "ieee",
) -> Problem:
    """Execute the task's reference and express it as a `Problem`.

    Args:
        files, tests, benchmarks: as `recognise` read them.
        precision: `tf32` lets float32 products be rounded to 10 bits.
    """
    texts = {name: text_of(path.parent / source) for name, source in files.items()}
    module = staged(texts, "reference.py", FUNCTIONS, "reference.py")
    made = _tests(texts, module, tests, benchmarks)
    nests = [one.nest for one in made]
    lent = _lent(module, min(made, key=lambda one: one.workload.moved))
    mutates = lent.written if lent.returned is None else ()
    native = [r.dtype for one in made for r in one.workload.recipes if isinstance(r, Spec)]

    def called(*args: Any) -> list[torch.Tensor]:
        own = [a.clone() if isinstance(a, torch.Tensor) and n not in mutates else a for n, a in enumerate(args)]
        with placed(device_of(args)):
            returned = module.ref_kernel(rebuild(nests[args[-1]], own))
        outputs = [] if returned is None else flatten(returned)[0]
        if "float64" in native or any(a.dtype == torch.float64 for a in own if isinstance(a, torch.Tensor)):
            return outputs
        # A reference that answers narrower inputs in float64 means to be accurate, not to ask for that type.
        return [t.float() if t.dtype == torch.float64 else t for t in outputs]

    reference = exact(called, native)
    return problem_of(
        slug(path.resolve().parent.name),
        [one.workload for one in made],
        precision=precision,
        reference=reference,
        scale=None if mutates else spread(reference),
        mutates=mutates,
        scratch=() if mutates else lent.written,
        check=_check(module, nests, lent),
        entry=adapter.CANDIDATE,
        adapter="gpumode",
        adapter_spec={"files": texts, "workloads": [{"given": dict(one.given), "nest": one.nest} for one in made]},
    )


def _tests(
    files: Mapping[str, str],
    module: ModuleType,
    tests: Sequence[Mapping[str, Any]],
    benchmarks: Sequence[Mapping[str, Any]],
) -> list[Test]:
    """Tests and benchmarks, those once that differ by their seed only; a benchmark is timed."""
    made: dict[str, Test] = {}
    for field, listed, timed in (("benchmarks", benchmarks, True), ("tests", tests, not benchmarks)):
        drawable = True
        for number, given in enumerate(listed):
            varied = {name: value for name, value in given.items() if name != adapter.SEED}
            same = repr(sorted(varied.items()))
            if same in made:
                continue
            key = adapter.register_inputs(files, module.generate_input, given)
            inputs = _inputs(f"task.yml: {field}[{number}]", module, given, drawable)
            if inputs is None:
                continue
            name = "-".join(f"{name}{value}" for name, value in varied.items()) or f"test{len(made)}"
            made[same] = Test(given, key, inputs[1], _workload(name, module, key, timed, *inputs))
            # Without a GPU what follows a large benchmark is not tried, and need not be drawn to be described.
            drawable = not timed or here() == "cuda" or "cpu" in devices_of(made[same].workload.moved, "float32")
    if not made:
        raise ProblemError("task.yml: no test can be described without a GPU, and there is none; expected one.")
    return list(made.values())


def _inputs(
    where: str, module: ModuleType, given: Mapping[str, Any], drawable: bool
) -> tuple[list[torch.Tensor], Any] | None:
    """What a test draws, and its nest: on shapes alone where that works, else for real, unless not to be drawn."""
    try:
        with on_shapes():
            tensors, nest = flatten(module.generate_input(**given))
    except Exception:
        if not drawable:
            return None
        try:
            with seeded(1, here()), placed(here()), torch.no_grad():
                tensors, nest = flatten(module.generate_input(**given))
        except Unusable as error:
            raise ProblemError(f"{where}: generate_input(): {error}.") from error
        except Exception as error:
            raise ProblemError(f"{where}: generate_input(**{dict(given)}) fails: {words(error)}") from error
    if not tensors:
        raise ProblemError(f"{where}: generate_input() returns no tensor; expected one at least.")
    return tensors, nest


def _workload(
    name: str, module: ModuleType, key: int, timed: bool, tensors: list[torch.Tensor], nest: Any
) -> TaskWorkload:
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors]
    recipes = [
        Spec("generated", tuple(tensor.shape), dtype, {"key": key, "index": index})
        for index, (tensor, dtype) in enumerate(zip(tensors, dtypes, strict=True))
    ]
    costs = counted(lambda *args: module.ref_kernel(rebuild(nest, args)), tensors)
    moved = size_of(recipes) + (costs.output_bytes if costs else 0)
    return TaskWorkload(name, floating(dtypes), recipes, moved, costs, timed)


def _lent(module: ModuleType, test: Test) -> Lent:
    """Call the reference once, and see which inputs it writes into."""
    try:
        tensors = drawn(test.key, 1, here())
        before = [t.clone() for t in tensors]
        with placed(here()), torch.no_grad():
            returned = module.ref_kernel(rebuild(test.nest, tensors))
        nest = None if returned is None else flatten(returned)[1]
    except Unusable as error:
        raise ProblemError(f"reference.py: ref_kernel() returns what cannot be compared: {error}.") from error
    except Exception as error:
        raise ProblemError(f"reference.py: ref_kernel() fails on {dict(test.given)}: {words(error)}") from error
    changed = (not torch.equal(_bits(a), _bits(b)) for a, b in zip(tensors, before, strict=True))
    written = tuple(n for n, c in enumerate(changed) if c)
    if nest is None and not written:
        raise ProblemError("reference.py: ref_kernel() returns nothing and changes no input; expected an output.")
    return Lent(written, nest)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Equal where the bits are: memory that is lent may hold NaN."""
    return tensor.contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor


def _check(module: ModuleType, nests: list[Any], lent: Lent) -> Callable[[list[Any], list[Any]], str]:
    """The task's own check, on our flat inputs and outputs."""

    def check(inputs: list[Any], outputs: list[Any]) -> str:
        own, device = list(inputs), device_of(inputs)
        if lent.returned is None:
            for position, tensor in zip(lent.written, outputs, strict=True):
                own[position] = tensor
        data = rebuild(nests[inputs[-1]], own)
        output = None if lent.returned is None else rebuild(lent.returned, outputs)
        with placed(device), torch.no_grad(), seeded(SEEDS, device):
            said = module.check_implementation(data, output)
        if isinstance(said, tuple) and len(said) == 2:
            return "" if said[0] else str(said[1]) or "it says no"
        return "" if said is True or said is None else "it says no" if said is False else str(said)

    return check
