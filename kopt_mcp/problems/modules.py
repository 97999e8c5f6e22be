"""A problem whose reference is a torch module, as KernelBench writes them: inputs, state, costs. Harness only."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from kopt_mcp.evaluator.generated import Unusable, flatten, placed, rebuild, register, seeded
from kopt_mcp.problem import DISTRIBUTIONS, Input, Make, Problem, ProblemError, Spec, Workload
from kopt_mcp.problems.adapters import kernelbench as adapter
from kopt_mcp.problems.counting import Costs, bound_of, counted, devices_of
from kopt_mcp.problems.exact import exact, spread

_SPREAD = 0.25
"""By how much state that a module makes constant is moved about: of its value, or absolutely where that is zero."""
_SETS = 2
_TRIALS = 1000
_LARGE = 2 << 30
"""Bytes above which it is not found out how rounding errors add up: in float64 that takes more than there is."""


@dataclass(frozen=True)
class Options:
    """How a problem is to be read where its file does not say; see `kernelbench.load`."""

    sizes: tuple[Mapping[str, Any], ...]
    dtype: str
    precision: Any
    mode: str
    weights: str
    values: str


@dataclass(frozen=True)
class Size:
    """The problem with some of its constants replaced: what it executes to, and what it takes."""

    constants: Mapping[str, Any]
    task: Mapping[str, Any]
    specs: tuple[Spec, ...]
    nest: Any
    costs: Costs | None


def problem_of(file: str, name: str, source: str, options: Options) -> Problem:
    """The `Problem` of one KernelBench file.

    Raises:
        ProblemError: see `kernelbench.load`.
    """
    sizes = [_size(file, source, constants, options) for constants in ({}, *options.sizes)]
    states = _States(file, sizes, options)
    names = list(states.of(0, 0)) if not options.sizes else _same_names(file, sizes, states)
    workloads = [_workload(number, size, states, options) for number, size in enumerate(sizes)]
    reference = exact(lambda *args: _forward(sizes, states, names, args))
    return Problem(
        name=name,
        reference=reference,
        inputs=lambda make, size, weights, **_: _inputs(make, sizes[size], states.of(size, weights), size, weights),
        workloads=_named(workloads),
        bytes="moved",
        flops="operations",
        bound=bound_of(workloads[0].params["moved"], sizes[0].costs),
        entry=adapter.CANDIDATE,
        precision=options.precision,
        reduction="longest",
        scale=spread(reference) if max(w.params["moved"] for w in workloads) <= _LARGE else None,
        vary={"weights": (1, _TRIALS)} if names else {},
        distributions=DISTRIBUTIONS if any(s.kind == "normal" for one in sizes for s in one.specs) else ("normal",),
        certain=_certain(sizes),
        adapter="kernelbench",
        adapter_spec={
            "source": source,
            "dtype": options.dtype,
            "mode": options.mode,
            "seed": states.seed,
            "state": names,
            "sizes": [{"constants": dict(s.constants), "inputs": len(s.specs), "nest": s.nest} for s in sizes],
        },
    )


def _size(file: str, source: str, constants: Mapping[str, Any], options: Options) -> Size:
    """Execute the file with these constants, and find out what `get_inputs` returns."""
    where = f"{file} with {dict(constants)}" if constants else file
    try:
        task = adapter.executed(source, constants)
    except Exception as error:
        raise ProblemError(f"{where} does not load: {type(error).__name__}: {error}") from error
    for needed in ("Model", "get_inputs", "get_init_inputs"):
        if not callable(task.get(needed)):
            raise ProblemError(f"{where} defines no {needed}; expected {needed} to be a class or a function.")
    key = adapter.input_key(source, constants)
    register(key, adapter.inputs_of(task, options.dtype))
    specs, nest = _recipes(where, task, key, options)
    return Size(constants, task, specs, nest, _costs(task, nest, specs, options))


def _recipes(where: str, task: Mapping[str, Any], key: int, options: Options) -> tuple[tuple[Spec, ...], Any]:
    """How to draw each tensor that `get_inputs` returns."""
    drawn = _Drawn()
    torch.empty(1, device="meta").mul(2)  # the first such operator imports a thousand modules, which must see no mode
    try:
        try:
            with placed("meta"), drawn:
                returned = list(task["get_inputs"]())
        except NotImplementedError:  # an operator that needs values: draw them
            drawn = _Drawn()
            with placed("cpu"), seeded(1, "cpu"), drawn:
                returned = list(task["get_inputs"]())
        tensors, nest = flatten(returned)
    except Unusable as error:
        raise ProblemError(f"{where}: get_inputs(): {error}.") from error
    except Exception as error:
        raise ProblemError(f"{where}: get_inputs() fails: {type(error).__name__}: {error}") from error
    if not tensors:
        raise ProblemError(f"{where}: get_inputs() returns no tensor; expected a list that holds one.")
    return tuple(_recipe(t, n, drawn, key, options) for n, t in enumerate(tensors)), nest


def _recipe(tensor: torch.Tensor, index: int, drawn: _Drawn, key: int, options: Options) -> Spec:
    dtype = options.dtype if tensor.dtype.is_floating_point else str(tensor.dtype).removeprefix("torch.")
    kind, args = drawn.recipe(tensor)
    if kind == "uniform" and options.values == "normal":
        kind, args = "normal", {"scale": 1.0, "shift": 0.0}
    if kind == "generated":
        args = {"key": key, "index": index}
    return Spec(kind, tuple(tensor.shape), dtype, args)  # type: ignore[arg-type]


class _Drawn(TorchFunctionMode):
    """Notes which tensors came right out of `torch.rand`, `randn` and `randint`, and were left as they were."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[torch.Tensor, int, str, dict[str, float]]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        if function is torch.rand:
            self._note(out, "uniform", {"low": 0.0, "high": 1.0})
        elif function is torch.randn:
            self._note(out, "normal", {"scale": 1.0, "shift": 0.0})
        elif function is torch.randint:
            ends = [kwargs[n] for n in ("low", "high") if n in kwargs] or [a for a in args if isinstance(a, int)]
            self._note(out, "integers", {"low": ends[0] if len(ends) > 1 else 0, "high": ends[-1]})
        return out

    def _note(self, tensor: torch.Tensor, kind: str, args: dict[str, float]) -> None:
        self._made.append((tensor, tensor._version, kind, args))

    def recipe(self, tensor: torch.Tensor) -> tuple[str, dict[str, float]]:
        """Kind and arguments of the recipe of a tensor; `generated` where none is known."""
        for made, version, kind, args in self._made:
            if made is tensor and made._version == version:
                return kind, args
        return "generated", {}


def _costs(task: Mapping[str, Any], nest: Any, specs: tuple[Spec, ...], options: Options) -> Costs | None:
    """Of one forward pass, on shapes alone."""
    try:
        with placed("meta"):
            given = task["get_init_inputs"]()
            model = task["Model"](**given) if isinstance(given, dict) else task["Model"](*given)
            model = model.to(getattr(torch, options.dtype)).train(options.mode == "train")
            tensors = [torch.empty(s.shape, dtype=getattr(torch, s.dtype)) for s in specs]
    except Exception:  # a constructor that looks at values; the costs are then not known
        return None
    return counted(lambda *args: model(*rebuild(nest, list(args))), tensors)


class _States:
    """The state of `Model`, by size and set of weights; the last few are kept."""

    def __init__(self, file: str, sizes: list[Size], options: Options) -> None:
        self.seed = secrets.randbits(16)
        self._file, self._sizes, self._options = file, sizes, options
        self._kept: OrderedDict[tuple[int, int], tuple[torch.nn.Module, dict[str, torch.Tensor]]] = OrderedDict()

    def of(self, size: int, weights: int) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, on the CPU."""
        return self._built(size, weights)[1]

    def model(self, size: int, weights: int) -> torch.nn.Module:
        """The module that they are of: for all of it that is no state."""
        return self._built(size, weights)[0]

    def _built(self, size: int, weights: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
        if (size, weights) not in self._kept:
            task = self._sizes[size].task
            try:
                model = adapter.constructed(task["Model"], task, self.seed + weights)
            except Exception as error:
                raise ProblemError(
                    f"{self._file}: Model(*get_init_inputs()) fails: {type(error).__name__}: {error}"
                ) from error
            if not isinstance(model, torch.nn.Module):
                raise ProblemError(f"{self._file}: Model is not a torch.nn.Module; expected a class of that kind.")
            model = model.to(getattr(torch, self._options.dtype)).train(self._options.mode == "train")
            state = {name: tensor.detach() for name, tensor in adapter.state_of(model).items()}
            if self._options.weights == "drawn":
                state = _varied(state, self.seed + weights)
            self._kept[size, weights] = (model, state)
            if len(self._kept) > _SETS * len(self._sizes):
                self._kept.popitem(last=False)
        return self._kept[size, weights]


def _varied(state: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """The state with what is constant drawn anew around its value, its sign kept."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, tensor in state.items():
        first = tensor.flatten()[:1]
        if tensor.dtype.is_floating_point and tensor.numel() and bool((tensor == first).all()):
            noise = _SPREAD * torch.randn(tensor.shape, generator=generator)
            tensor = (noise if float(first) == 0 else float(first) * noise.exp()).to(tensor.dtype)
        made[name] = tensor
    return made


def _same_names(file: str, sizes: list[Size], states: _States) -> list[str]:
    names = list(states.of(0, 0))
    for number, size in enumerate(sizes):
        if list(states.of(number, 0)) != names:
            raise ProblemError(
                f"{file} with {dict(size.constants)} has other parameters than without; expected the same."
            )
    return names


def _inputs(make: Make, size: Size, state: Mapping[str, torch.Tensor], which: int, weights: int) -> list[Input]:
    return [*size.specs, *(make.literal(tensor) for tensor in state.values()), which, weights]


def _forward(sizes: list[Size], states: _States, names: list[str], args: tuple[Any, ...]) -> Any:
    """`Model` on flat arguments, with the state that is among them."""
    which, weights = args[-2:]
    size, count = sizes[which], len(sizes[which].specs)
    state = dict(zip(names, args[count:-2], strict=True))
    device = next(a.device for a in args if isinstance(a, torch.Tensor))
    with placed(device.type if device.index is None else str(device)):
        return functional_call(states.model(which, weights), state, tuple(rebuild(size.nest, list(args[:count]))))


def _workload(number: int, size: Size, states: _States, options: Options) -> Workload:
    given = sum(torch.Size(s.shape).numel() * getattr(torch, s.dtype).itemsize for s in size.specs)
    given += sum(t.numel() * t.element_size() for t in states.of(number, 0).values())
    moved = given + (size.costs.output_bytes if size.costs else 0)
    shape = "x".join(str(n) for n in size.specs[0].shape) or "scalar"
    short = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[options.dtype]
    return Workload(
        params={
            "size": number,
            "weights": 0,
            "moved": moved,
            "operations": size.costs.flops if size.costs else 0.0,
            "longest": size.costs.longest if size.costs else 1,
        },
        dtype=options.dtype,
        devices=devices_of(moved, options.dtype),
        name=f"{shape}-{short}",
    )


def _certain(sizes: list[Size]) -> tuple[str, ...]:
    """The bytes, where every input is a dense draw and the reference leaves nothing of it out.

    Operations never: what is summed up after a product can often be summed up before it.
    """
    dense = all(s.kind in ("uniform", "normal") for one in sizes for s in one.specs)
    return ("bytes",) if dense and all(one.costs and not one.costs.partial for one in sizes) else ()


def _named(workloads: list[Workload]) -> list[Workload]:
    """The workloads, with numbers where several are of one name."""
    names = [w.name for w in workloads]
    return [
        w if names.count(w.name) == 1 else Workload(w.params, w.dtype, w.devices, w.timed, f"{w.name}-{number}")
        for number, w in enumerate(workloads)
    ]
