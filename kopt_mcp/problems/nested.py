"""A problem whose inputs are a nest that the task's own code draws, as GPU MODE's are. Harness only."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kopt_mcp.evaluator.generated import SEEDS, Unusable, drawn, flatten, placed, rebuild, register, seeded
from kopt_mcp.problem import DTYPES, Problem, ProblemError, Spec, Workload
from kopt_mcp.problems import executed
from kopt_mcp.problems.adapters import gpumode as adapter
from kopt_mcp.problems.counting import Costs, bound_of, counted, devices_of
from kopt_mcp.problems.exact import exact, spread


@dataclass(frozen=True)
class Test:
    """One test or benchmark of a task: its arguments, and what `generate_input` makes of them."""

    given: Mapping[str, Any]
    timed: bool
    key: int
    tensors: tuple[tuple[tuple[int, ...], str], ...]
    """Shape and dtype of each."""
    nest: Any
    costs: Costs | None

    @property
    def moved(self) -> int:
        """Bytes of all tensors in, and of those out where they are known."""
        given = sum(math.prod(shape) * DTYPES[dtype] for shape, dtype in self.tensors)
        return given + (self.costs.output_bytes if self.costs else 0)


@dataclass(frozen=True)
class Lent:
    """What the reference does to its inputs, and how it returns its outputs."""

    written: tuple[int, ...]
    """Inputs that it overwrites."""
    returned: Any
    """The nest of what it returns; None where it returns nothing."""


def problem_of(
    name: str,
    files: Mapping[str, str],
    tests: list[Mapping[str, Any]],
    benchmarks: list[Mapping[str, Any]],
    precision: Any,
) -> Problem:
    """The `Problem` of one task.

    Raises:
        ProblemError: see `gpumode.load`.
    """
    module = _staged(files)
    made = _tests(files, module, tests, benchmarks)
    nests = [one.nest for one in made]
    lent = _lent(module, min(made, key=lambda one: one.moved))
    largest = max(made, key=lambda one: one.moved)
    native = sorted({dtype for one in made for _, dtype in one.tensors})
    mutates = () if lent.returned is not None else lent.written

    def called(*args: Any) -> list[torch.Tensor]:
        own = [a.clone() if isinstance(a, torch.Tensor) and n not in mutates else a for n, a in enumerate(args)]
        with placed(_device(args)):
            returned = module.ref_kernel(rebuild(nests[args[-1]], own))
        outputs = [] if returned is None else flatten(returned)[0]
        if "float64" in native or any(a.dtype == torch.float64 for a in own if isinstance(a, torch.Tensor)):
            return outputs
        # A reference that answers narrower inputs in float64 means to be accurate, not to ask for that type.
        return [t.float() if t.dtype == torch.float64 else t for t in outputs]

    reference = exact(called, native)
    return Problem(
        name=name,
        reference=reference,
        inputs=lambda make, test, **_: [*_specs(made[test]), test],
        workloads=[_workload(number, one) for number, one in enumerate(made)],
        bytes="moved",
        flops="operations",
        bound=bound_of(largest.moved, largest.costs),
        entry=adapter.CANDIDATE,
        precision=precision,
        reduction="longest",
        scale=None if mutates else spread(reference),
        distributions=("normal",),
        mutates=mutates,
        scratch=() if mutates else lent.written,
        check=_check(module, nests, lent),
        certain=(),
        adapter="gpumode",
        adapter_spec={
            "files": dict(files),
            "workloads": [{"given": dict(one.given), "nest": one.nest} for one in made],
        },
    )


def _staged(files: Mapping[str, str]) -> ModuleType:
    """Execute `reference.py` among the task's files, each where it is called for."""
    folder = Path(tempfile.mkdtemp(prefix="task-"))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    with placed("cuda" if torch.cuda.is_available() else "cpu"):
        module = executed(folder / f"{adapter.REFERENCE}.py", adapter.REFERENCE)
    for needed in ("generate_input", "ref_kernel", "check_implementation"):
        if not callable(getattr(module, needed, None)):
            raise ProblemError(f"reference.py defines no {needed}; expected a function.")
    return module


def _tests(
    files: Mapping[str, str],
    module: ModuleType,
    tests: list[Mapping[str, Any]],
    benchmarks: list[Mapping[str, Any]],
) -> list[Test]:
    """Tests and benchmarks, those once that differ by their seed only; a benchmark is timed."""
    made: dict[str, Test] = {}
    for field, listed, timed in (("benchmarks", benchmarks, True), ("tests", tests, not benchmarks)):
        drawable = True
        for number, given in enumerate(listed):
            same = repr(sorted((k, v) for k, v in given.items() if k != adapter.SEED))
            if same in made:
                continue
            if (one := _test(f"{field}[{number}]", files, module, given, timed, drawable)) is not None:
                made[same] = one
                # Without a GPU what follows a large benchmark is not tried, and need not be drawn to be described.
                drawable = not timed or torch.cuda.is_available() or "cpu" in devices_of(one.moved, "float32")
    if not made:
        raise ProblemError("task.yml: no test can be described without a GPU, and there is none; expected one.")
    return list(made.values())


def _test(
    where: str,
    files: Mapping[str, str],
    module: ModuleType,
    given: Mapping[str, Any],
    timed: bool,
    drawable: bool,
) -> Test | None:
    """What a test draws: on shapes alone where that works, else for real, unless it is not to be drawn."""
    key = adapter.key(files, given)
    register(key, adapter.source(module.generate_input, given))
    try:
        tensors, nest = _shapes(module, given)
    except Exception:
        if not drawable:
            return None
        try:
            tensors, nest = _values(module, given)
        except Unusable as error:
            raise ProblemError(f"task.yml: {where}: generate_input(): {error}.") from error
        except Exception as error:
            raise ProblemError(
                f"task.yml: {where}: generate_input(**{dict(given)}) fails: {type(error).__name__}: {str(error)[:300]}"
            ) from error
    if not tensors:
        raise ProblemError(f"task.yml: {where}: generate_input() returns no tensor; expected one at least.")
    described = tuple((tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors)
    costs = counted(lambda *args: module.ref_kernel(rebuild(nest, args)), tensors)
    return Test(dict(given), timed, key, described, nest, costs)


def _shapes(module: ModuleType, given: Mapping[str, Any]) -> tuple[list[torch.Tensor], Any]:
    torch.empty(1, device="meta").mul(2)  # the first such operator imports a thousand modules, which must see no mode
    with placed("meta"), torch.no_grad():
        return flatten(module.generate_input(**given))


def _values(module: ModuleType, given: Mapping[str, Any]) -> tuple[list[torch.Tensor], Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with seeded(1, device), placed(device), torch.no_grad():
        return flatten(module.generate_input(**given))


def _lent(module: ModuleType, test: Test) -> Lent:
    """Call the reference once, and see which inputs it writes into.

    Raises:
        ProblemError: it fails, or returns something else than tensors.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        tensors = drawn(test.key, 1, device)
        before = [t.clone() for t in tensors]
        with placed(device), torch.no_grad():
            returned = module.ref_kernel(rebuild(test.nest, tensors))
        nest = None if returned is None else flatten(returned)[1]
    except Unusable as error:
        raise ProblemError(f"reference.py: ref_kernel() returns what cannot be compared: {error}.") from error
    except Exception as error:
        raise ProblemError(
            f"reference.py: ref_kernel() fails on {dict(test.given)}: {type(error).__name__}: {str(error)[:300]}"
        ) from error
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
        own = list(inputs)
        if lent.returned is None:
            for position, tensor in zip(lent.written, outputs, strict=True):
                own[position] = tensor
        data = rebuild(nests[inputs[-1]], own)
        output = None if lent.returned is None else rebuild(lent.returned, outputs)
        with placed(_device(inputs)), torch.no_grad(), seeded(SEEDS, _device(inputs)):
            said = module.check_implementation(data, output)
        if isinstance(said, tuple) and len(said) == 2:
            return "" if said[0] else str(said[1]) or "it says no"
        return "" if said is True or said is None else "it says no" if said is False else str(said)

    return check


def _device(args: Any) -> str:
    return next(str(a.device) for a in args if isinstance(a, torch.Tensor))


def _specs(test: Test) -> list[Spec]:
    return [
        Spec("generated", shape, dtype, {"key": test.key, "index": index})
        for index, (shape, dtype) in enumerate(test.tensors)
    ]


def _workload(number: int, test: Test) -> Workload:
    floating = [dtype for _, dtype in test.tensors if getattr(torch, dtype).is_floating_point]
    dtype = (floating or [test.tensors[0][1]])[0]
    shown = "-".join(f"{k}{v}" for k, v in test.given.items() if k != adapter.SEED)
    return Workload(
        params={
            "test": number,
            "moved": test.moved,
            "operations": test.costs.flops if test.costs else 0.0,
            "longest": test.costs.longest if test.costs else 1,
        },
        dtype=dtype,
        devices=devices_of(test.moved, dtype),
        timed=test.timed,
        name=shown or f"test{number}",
    )
