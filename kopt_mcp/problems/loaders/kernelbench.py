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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from kopt_mcp.evaluator.generated import Unusable, flatten, placed, rebuild, seeded
from kopt_mcp.problem import Input, Make, Problem, ProblemError, Spec
from kopt_mcp.problems.adapters import kernelbench as adapter
from kopt_mcp.problems.loaders import TaskWorkload, device_of, one_of, problem_of, size_of, words
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
    seed = secrets.randbits(16)
    made = [_Size(path.name, source, constants, options, seed) for constants in ({}, *sizes)]
    names = list(made[0].state(0))
    if other := next((size for size in made if list(size.state(0)) != names), None):
        raise ProblemError(f"{other.where} has other parameters than without; expected the same.")
    workloads = [size.workload() for size in made]

    def inputs(make: Make, which: int, weights: int, **_: Any) -> list[Input]:
        state = made[which].state(weights).values()
        return [*made[which].specs, *(make.literal(tensor) for tensor in state), which, weights]

    def forward(*args: Any) -> Any:
        """`Model` on flat arguments, with the state that is among them."""
        size, count = made[args[-2]], len(made[args[-2]].specs)
        state = dict(zip(names, args[count:-2], strict=True))
        with placed(device_of(args)):
            return functional_call(size.built(args[-1])[0], state, tuple(rebuild(size.nest, args[:count])))

    reference = exact(forward)
    return problem_of(
        slug(path.stem),
        workloads,
        precision=precision,
        reference=reference,
        inputs=inputs,
        scale=spread(reference) if max(one.moved for one in workloads) <= _LARGE else None,
        vary={"weights": (1, _TRIALS)} if names else {},
        entry=adapter.CANDIDATE,
        adapter="kernelbench",
        adapter_spec={
            "source": source,
            "dtype": dtype,
            "mode": mode,
            "seed": seed,
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


class _Size:
    """The problem with some of its constants replaced: what it takes, its costs, and the state of its `Model`."""

    def __init__(self, file: str, source: str, constants: Mapping[str, Any], options: Options, seed: int) -> None:
        """Execute the file with these constants, and find out what `get_inputs` returns."""
        self.where = f"{file} with {dict(constants)}" if constants else file
        self.constants, self._options, self._seed = constants, options, seed
        self._dtype = getattr(torch, options.dtype)
        try:
            self._task = adapter.executed(source, constants)
        except Exception as error:
            raise ProblemError(f"{self.where} does not load: {words(error)}") from error
        for needed in ("Model", "get_inputs", "get_init_inputs"):
            if not callable(self._task.get(needed)):
                raise ProblemError(f"{self.where} defines no {needed}; expected {needed} to be a class or a function.")
        tensors, self.nest, drawn = self._inputs()
        key = adapter.register_inputs(source, constants, self._task, options.dtype)
        self.specs = [_recipe(t, drawn.recipe(t), {"key": key, "index": n}, options) for n, t in enumerate(tensors)]
        self.built = lru_cache(maxsize=_SETS)(self._built)

    def _inputs(self) -> tuple[list[torch.Tensor], Any, _Drawn]:
        try:
            try:
                with on_shapes(), _Drawn() as drawn:
                    returned = list(self._task["get_inputs"]())
            except NotImplementedError:  # an operator that needs values: draw them
                with placed("cpu"), seeded(1, "cpu"), _Drawn() as drawn:
                    returned = list(self._task["get_inputs"]())
            tensors, nest = flatten(returned)
        except Unusable as error:
            raise ProblemError(f"{self.where}: get_inputs(): {error}.") from error
        except Exception as error:
            raise ProblemError(f"{self.where}: get_inputs() fails: {words(error)}") from error
        if not tensors:
            raise ProblemError(f"{self.where}: get_inputs() returns no tensor; expected a list that holds one.")
        return tensors, nest, drawn

    def state(self, weights: int) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, on the CPU, in one set of weights."""
        return self.built(weights)[1]

    def _built(self, weights: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
        """`Model`, for all of it that is no state, and its state."""
        try:
            with seeded(self._seed + weights, "cpu"), placed("cpu"):
                model = adapter.constructed(self._task["Model"], self._task)
        except Exception as error:
            raise ProblemError(f"{self.where}: Model(*get_init_inputs()) fails: {words(error)}") from error
        if not isinstance(model, torch.nn.Module):
            raise ProblemError(f"{self.where}: Model is not a torch.nn.Module; expected a class of that kind.")
        model = model.to(self._dtype).train(self._options.mode == "train")
        state = {name: tensor.detach() for name, tensor in adapter.state_of(model).items()}
        return model, _varied(state, self._seed + weights) if self._options.weights == "drawn" else state

    def workload(self) -> TaskWorkload:
        """The workload that it is."""
        costs = self._costs()
        moved = size_of([*self.specs, *self.state(0).values()]) + (costs.output_bytes if costs else 0)
        shape = "x".join(str(n) for n in self.specs[0].shape) or "scalar"
        name = f"{shape}-{_DTYPES[self._options.dtype]}"
        return TaskWorkload(name, self._options.dtype, self.specs, moved, costs, params={"weights": 0})

    def _costs(self) -> Costs | None:
        """Of one forward pass, on shapes alone."""
        try:
            with on_shapes():
                model = adapter.constructed(self._task["Model"], self._task).to(self._dtype)
                model.train(self._options.mode == "train")
        except Exception:  # a constructor that looks at values; the costs are then not known
            return None
        return counted(lambda *args: model(*rebuild(self.nest, args)), self.specs)


def _recipe(tensor: torch.Tensor, drawn: Drawing | None, otherwise: dict[str, float], options: Options) -> Spec:
    """How to draw a tensor that `get_inputs` returned: as it was drawn, or by its own code."""
    dtype = options.dtype if tensor.dtype.is_floating_point else str(tensor.dtype).removeprefix("torch.")
    kind, args = drawn or ("generated", otherwise)
    if kind == "uniform" and options.values == "normal":
        kind, args = "normal", {"scale": 1.0, "shift": 0.0}
    return Spec(kind, tuple(tensor.shape), dtype, args)


Drawing = tuple[Literal["uniform", "normal", "integers"], dict[str, float]]
"""Kind and arguments of a recipe."""


class _Drawn(TorchFunctionMode):
    """Notes which tensors came right out of `torch.rand`, `randn` and `randint`, and were left as they were."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[torch.Tensor, int, Drawing]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        drawing: Drawing | None = None
        if function is torch.rand:
            drawing = ("uniform", {"low": 0.0, "high": 1.0})
        elif function is torch.randn:
            drawing = ("normal", {"scale": 1.0, "shift": 0.0})
        elif function is torch.randint:
            ends = [kwargs[n] for n in ("low", "high") if n in kwargs] or [a for a in args if isinstance(a, int)]
            drawing = ("integers", {"low": ends[0] if len(ends) > 1 else 0, "high": ends[-1]})
        if drawing:
            self._made.append((out, out._version, drawing))
        return out

    def recipe(self, tensor: torch.Tensor) -> Drawing | None:
        """How a tensor was drawn; None where that is not known."""
        return next((d for made, version, d in self._made if made is tensor and made._version == version), None)


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
