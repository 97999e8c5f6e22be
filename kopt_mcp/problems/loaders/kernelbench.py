"""A module of KernelBench as a problem.

What a problem file leaves open is settled here. Inputs: what `get_inputs` draws with `torch.rand`, `randn` or `randint`
becomes a recipe of ours, so that shapes and ranges are the problem's and seeds and values are not; whatever else it
returns is drawn by itself under our seeds. Weights: `Model` is built under a secret seed, what is constant in its state
(a norm's ones, a bias of zeros) is drawn anew, since a kernel that leaves it out must not be right, and the candidate
is given the same state; several such sets are tried. Reference: the module in float64. Float32 means float32 unless the
options allow TF32.
"""

from __future__ import annotations

import ast
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from kopt_mcp.evaluator.generated import Unusable, flatten, placed, rebuild, seeded
from kopt_mcp.problem import Input, Make, Problem, ProblemError, Spec
from kopt_mcp.problems.adapters import kernelbench as adapter
from kopt_mcp.problems.loaders import Case, device_of, one_of, problem_of, size_of, words
from kopt_mcp.problems.loaders.counting import Costs, counted, on_shapes
from kopt_mcp.problems.loaders.exact import exact, spread
from kopt_mcp.problems.reading import defined, slug, text_of

_SPREAD = 0.25
"""By how much state that a module makes constant is moved about: of its value, or absolutely where that is zero."""
_SETS = 2
_TRIALS = 1000
_LARGE = 2 << 30
"""Bytes above which it is not found out how rounding errors add up: in float64 that takes more than there is."""
_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Options:
    """How a problem is to be read where its file does not say; see `load`."""

    dtype: str
    mode: str
    weights: str
    values: str


@dataclass(frozen=True)
class Size:
    """The problem with some of its constants replaced: what it executes to, and what it takes."""

    where: str
    constants: Mapping[str, Any]
    task: Mapping[str, Any]
    specs: tuple[Spec, ...]
    nest: Any
    costs: Costs | None


def load(
    path: Path,
    *,
    sizes: Sequence[Mapping[str, Any]] = (),
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    precision: Literal["ieee", "tf32"] = "ieee",
    mode: Literal["train", "eval"] = "train",
    weights: Literal["drawn", "given"] = "drawn",
    values: Literal["given", "normal"] = "given",
) -> Problem:
    """Execute a problem file and express it as a `Problem`.

    Args:
        sizes: further workloads, each the problem with some of its constants replaced: `[{"batch_size": 16}]`.
        dtype: of inputs and weights.
        precision: `tf32` lets float32 products be rounded to 10 bits.
        mode: what `Model` is in when it is called; KernelBench leaves it in training mode.
        weights: `given` leaves constants in the state as `Model` makes them.
        values: `normal` draws what `torch.rand` draws from normal and from awkward distributions instead.
    """
    one_of("dtype", dtype, tuple(_DTYPES))
    one_of("mode", mode, ("train", "eval"))
    one_of("weights", weights, ("drawn", "given"))
    one_of("values", values, ("given", "normal"))
    source, options = text_of(path), Options(dtype, mode, weights, values)
    _require_constants(source, sizes)
    made = [_size(path.name, source, constants, options) for constants in ({}, *sizes)]
    states = _States(made, options)
    names = _names(made, states)
    cases = [_case(number, one, states, options) for number, one in enumerate(made)]
    reference = exact(lambda *args: _forward(made, states, names, args))

    def inputs(make: Make, which: int, weights: int, **_: Any) -> list[Input]:
        state = states.of(which, weights).values()
        return [*made[which].specs, *(make.literal(tensor) for tensor in state), which, weights]

    return problem_of(
        slug(path.stem),
        cases,
        precision=precision,
        reference=reference,
        inputs=inputs,
        scale=spread(reference) if max(one.moved for one in cases) <= _LARGE else None,
        vary={"weights": (1, _TRIALS)} if names else {},
        entry=adapter.CANDIDATE,
        adapter="kernelbench",
        adapter_spec={
            "source": source,
            "dtype": dtype,
            "mode": mode,
            "seed": states.seed,
            "state": names,
            "sizes": [{"constants": dict(s.constants), "inputs": len(s.specs), "nest": s.nest} for s in made],
        },
    )


def _require_constants(source: str, sizes: Sequence[Mapping[str, Any]]) -> None:
    constants = {n for n, node in defined(ast.parse(source)).items() if isinstance(node, ast.Assign)}
    if unknown := [name for size in sizes for name in size if name not in constants]:
        raise ProblemError(
            f"option sizes names {unknown[0]!r}, which the file does not assign at its top; it assigns "
            f"{sorted(constants)[:20]}."
        )


def _size(file: str, source: str, constants: Mapping[str, Any], options: Options) -> Size:
    """Execute the file with these constants, and find out what `get_inputs` returns."""
    where = f"{file} with {dict(constants)}" if constants else file
    try:
        task = adapter.executed(source, constants)
    except Exception as error:
        raise ProblemError(f"{where} does not load: {words(error)}") from error
    for needed in ("Model", "get_inputs", "get_init_inputs"):
        if not callable(task.get(needed)):
            raise ProblemError(f"{where} defines no {needed}; expected {needed} to be a class or a function.")
    key = adapter.register_inputs(source, constants, task, options.dtype)
    specs, nest = _recipes(where, task, key, options)
    return Size(where, constants, task, specs, nest, _costs(task, nest, specs, options))


def _recipes(where: str, task: Mapping[str, Any], key: int, options: Options) -> tuple[tuple[Spec, ...], Any]:
    """How to draw each tensor that `get_inputs` returns."""
    drawn = _Drawn()
    try:
        try:
            with on_shapes(), drawn:
                returned = list(task["get_inputs"]())
        except NotImplementedError:  # an operator that needs values: draw them
            drawn = _Drawn()
            with placed("cpu"), seeded(1, "cpu"), drawn:
                returned = list(task["get_inputs"]())
        tensors, nest = flatten(returned)
    except Unusable as error:
        raise ProblemError(f"{where}: get_inputs(): {error}.") from error
    except Exception as error:
        raise ProblemError(f"{where}: get_inputs() fails: {words(error)}") from error
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
        with on_shapes():
            model = adapter.constructed(task["Model"], task).to(getattr(torch, options.dtype))
    except Exception:  # a constructor that looks at values; the costs are then not known
        return None
    model.train(options.mode == "train")
    return counted(lambda *args: model(*rebuild(nest, args)), specs)


class _States:
    """The state of `Model`, by size and set of weights; the last few are kept."""

    def __init__(self, sizes: list[Size], options: Options) -> None:
        self.seed = secrets.randbits(16)
        self._sizes, self._options = sizes, options
        self._kept: OrderedDict[tuple[int, int], tuple[torch.nn.Module, dict[str, torch.Tensor]]] = OrderedDict()

    def of(self, size: int, weights: int) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, on the CPU."""
        return self.built(size, weights)[1]

    def built(self, size: int, weights: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
        """The module that they are of too: for all of it that is no state."""
        if (size, weights) not in self._kept:
            model = _model(self._sizes[size], self.seed + weights, self._options)
            state = {name: tensor.detach() for name, tensor in adapter.state_of(model).items()}
            if self._options.weights == "drawn":
                state = _varied(state, self.seed + weights)
            self._kept[size, weights] = (model, state)
            if len(self._kept) > _SETS * len(self._sizes):
                self._kept.popitem(last=False)
        return self._kept[size, weights]


def _model(size: Size, seed: int, options: Options) -> torch.nn.Module:
    try:
        with seeded(seed, "cpu"), placed("cpu"):
            model = adapter.constructed(size.task["Model"], size.task)
    except Exception as error:
        raise ProblemError(f"{size.where}: Model(*get_init_inputs()) fails: {words(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise ProblemError(f"{size.where}: Model is not a torch.nn.Module; expected a class of that kind.")
    return model.to(getattr(torch, options.dtype)).train(options.mode == "train")


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


def _names(sizes: list[Size], states: _States) -> list[str]:
    """The names of the state, which all sizes must have in common."""
    names = list(states.of(0, 0))
    for number, size in enumerate(sizes):
        if list(states.of(number, 0)) != names:
            raise ProblemError(f"{size.where} has other parameters than without; expected the same.")
    return names


def _forward(sizes: list[Size], states: _States, names: list[str], args: tuple[Any, ...]) -> Any:
    """`Model` on flat arguments, with the state that is among them."""
    which, weights = args[-2:]
    size, count = sizes[which], len(sizes[which].specs)
    state = dict(zip(names, args[count:-2], strict=True))
    with placed(device_of(args)):
        return functional_call(states.built(which, weights)[0], state, tuple(rebuild(size.nest, args[:count])))


def _case(number: int, size: Size, states: _States, options: Options) -> Case:
    state = list(states.of(number, 0).values())
    moved = size_of([*size.specs, *state]) + (size.costs.output_bytes if size.costs else 0)
    shape = "x".join(str(n) for n in size.specs[0].shape) or "scalar"
    name = f"{shape}-{_DTYPES[options.dtype]}"
    return Case(name, options.dtype, size.specs, moved, size.costs, params={"weights": 0})
