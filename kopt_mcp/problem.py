"""What a kernel must compute: the `Problem` that a `test_*.py` declares.

A problem names the function to optimise, a trusted reference, how to draw inputs, the workloads, and the bytes and
operations that any implementation needs. It holds no thresholds for speed and no test of its own: the evaluator checks
and times every candidate in the same way.

Standard library and torch only: this module runs under the user's own interpreter.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

DTYPES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of one element, by torch's name for the type."""

DISTRIBUTIONS = ("normal", "tiny", "large", "mixed", "equal", "outlier", "alternating", "sorted", "shifted", "zeros")
"""Shapes of the values that a `normal` tensor is drawn with during verification, unless the problem narrows them.

`large`: 64 standard deviations; and where a rounding error there does not decide the outputs, `far` too: rows above
zero, below it or on both sides, 768 to 4096 standard deviations (to 1024 in float16), of one input only.
`mixed`: a piece of one row as in `large` (or `far`: `mixed-far`), somewhere among ordinary values; not used where
`large` is left out. Each is of all inputs, and those that tell are of one input alone too, the others being normal.
`shifted`: a mean of 128 standard deviations, above or below zero by rows, on which a variance taken as the mean of
squares less the square of the mean cancels, and a maximum that begins at zero is wrong. `zeros`: rows of nothing, as
padding is, among ordinary ones. Integers are drawn `equal`, `sorted`, `alternating` (only the two ends) and `zeros`
too, within their bounds: their lower end is meant by zero, and that of `uniform` values."""

LAYOUTS = ("contiguous", "strided", "offset", "permuted")
"""`strided`: a slice of a larger tensor, of which nothing but the stride of the last dimension may be taken for
granted: columns of a tensor that is wider by whole vectors, or (`ragged`) by an odd number of elements, or that begin
within a vector (`cut`), as in `x[:, 1:]`; and of three and more dimensions, a slice of one before the last (`sliced`),
as in `x[:, :k, :]`, so that not all rows are equally far apart. `offset`: starts an odd number of elements past an
aligned address; `permuted`: of three and more dimensions, the last but one is ahead of the one before it in memory, as
after `x.transpose(1, 2)` of a (batch, seq, heads, dim). Each is tried on one input alone too, how much lies between is
drawn, and elements of the last dimension are always side by side."""


class ProblemError(ValueError):
    """A problem file is wrong: which field, what was found, what was expected."""


@dataclass(frozen=True)
class Spec:
    """One input to draw: the recipe is sent to the runner instead of the values.

    `kind` is `normal` (the only one whose values may be drawn from other distributions), `uniform`, `integers`,
    `literal` or `generated`. `args` holds `scale`/`shift`, or `low`/`high` (`high` exclusive), or the `index` of a
    literal, or the `key` of a source in `evaluator.generated` and the `index` among its tensors.
    """

    kind: Literal["normal", "uniform", "integers", "literal", "generated"]
    shape: tuple[int, ...]
    dtype: str
    args: dict[str, float] = field(default_factory=dict)


Input = Spec | int | float | bool | str


class Make:
    """Handed to a problem's `inputs` function to describe the tensors of one workload."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.literals: list[Any] = []

    def normal(self, *shape: int, scale: float = 1.0, shift: float = 0.0, dtype: str | None = None) -> Spec:
        """Normally distributed values; during verification also the other distributions that the problem allows."""
        return Spec("normal", _shape(shape), _dtype(dtype or self.dtype), {"scale": scale, "shift": shift})

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: str | None = None) -> Spec:
        """Uniform values in [low, high): for inputs whose domain is bounded, such as probabilities."""
        return Spec("uniform", _shape(shape), _dtype(dtype or self.dtype), {"low": low, "high": high})

    def integers(self, *shape: int, low: int = 0, high: int, dtype: str = "int64") -> Spec:
        """Uniform integers in [low, high): labels, indices, routing."""
        least, most = _range(_dtype(dtype))
        if not (least <= low < high <= most + 1):
            raise ProblemError(
                f"make.integers(low={low}, high={high}, dtype={dtype!r}) has no such integers; give low below high, "
                f"which is not drawn itself, and both within [{least}, {most + 1}]."
            )
        return Spec("integers", _shape(shape), _dtype(dtype), {"low": low, "high": high})

    def literal(self, tensor: Any) -> Spec:
        """These very values (a CPU tensor), the same in every call: tables, offsets, masks."""
        self.literals.append(tensor.detach().cpu().contiguous())
        name = str(tensor.dtype).removeprefix("torch.")
        return Spec("literal", tuple(tensor.shape), _dtype(name), {"index": len(self.literals) - 1})


@dataclass(frozen=True)
class Workload:
    """One shape and dtype to be right on, and to be timed on unless `timed=False`."""

    params: Mapping[str, Any]
    """The names that `inputs`, `bytes` and `flops` use, e.g. `{"rows": 4096, "cols": 4096}`."""
    dtype: str = "float32"
    devices: tuple[str, ...] = ("cpu", "cuda")
    timed: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        _dtype(self.dtype)
        if unknown := set(self.devices) - {"cpu", "cuda"}:
            raise ProblemError(f"Workload.devices holds {sorted(unknown)}; expected 'cpu' and/or 'cuda'.")
        if not self.name:
            sizes = "x".join(str(v) for v in self.params.values())
            short = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
            object.__setattr__(self, "name", f"{sizes}-{short.get(self.dtype, self.dtype)}")


@dataclass(frozen=True)
class Tolerance:
    """How far from the float64 reference an element may lie, in units of the type's rounding error.

    The rule is in `evaluator.compare`: an element passes if
    |out - ref64| <= max(2 * max|ref_lp - ref64|, factor * u * |ref64|, factor * u_acc * sqrt(K + 8) * max(|ref64|, S)),
    or no more than `factor` times what a rounding error in each input does to it, or to most of its row; and the root
    mean square error is bounded too, over all elements and among elements of one size.
    """

    factor: float = 4.0

    def __post_init__(self) -> None:
        if not (0 < self.factor <= 64):
            raise ProblemError(f"Tolerance.factor is {self.factor}; expected above 0 and at most 64 rounding errors.")


@dataclass(frozen=True)
class Case:
    """One workload made concrete: its parameters, its input recipes, and its cost."""

    workload: Workload
    params: dict[str, Any]
    inputs: tuple[Input, ...]
    literals: tuple[Any, ...]
    bytes: float
    flops: float


@dataclass(frozen=True)
class Problem:
    """What a kernel must compute, and on what.

    Raises:
        ProblemError: a field is missing or contradicts another; the text names it.
    """

    name: str
    reference: Callable[..., Any]
    """Trusted, slow, right; must work in float64. Called with the same arguments as the kernel."""
    inputs: Callable[..., Sequence[Input]]
    """`inputs(make, **params)`: the arguments of one call, tensors described through `make`."""
    workloads: Sequence[Workload]
    bytes: str
    """Formula over the params and `itemsize`: each input read once, each output written once."""
    flops: str
    """Formula over the params: operations that the definition needs, a multiply-add counts as two."""
    bound: Literal["memory", "compute", "latency"]
    """What limits a good kernel: the diagnosis falls back on it where nothing can be measured."""
    entry: str = ""
    """Function of the kernel file (Python) or exported symbol (C, CUDA, HIP); the problem's name if empty."""
    arguments: Sequence[str] = ()
    """For C, CUDA and HIP: the order of the call. Input tensors are `in0`, `in1`, ..., outputs `out0`, ..., everything
    else a param passed as int64 (a float as double). The CUDA stream comes last, unnamed."""
    tolerance: Mapping[str, Tolerance] = field(default_factory=dict)
    """By dtype, where the default of four rounding errors is not right."""
    precision: Literal["ieee", "tf32"] = "ieee"
    """`tf32` allows float32 matrix products to be rounded to 10 bits; `ieee` refuses them."""
    reduction: str = ""
    """Formula for the length K of the longest sum, where rounding errors add up (matrix products, long sums)."""
    scale: Callable[..., Any] | None = None
    """S, the root sum of squares of that sum's terms, called like the reference: sqrt(A**2 @ B**2) for a product A @ B.
    Needed where terms cancel, so that a small result is judged by what was added up."""
    vary: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Params that may take any value in [low, high]: the evaluator draws awkward ones in secret."""
    distributions: Sequence[str] = DISTRIBUTIONS
    layouts: Sequence[str] = ("contiguous",)
    mutates: Sequence[int] = ()
    """Inputs (by position) that the kernel updates in place; they are outputs too, ahead of what it returns."""
    scratch: Sequence[int] = ()
    """Inputs (by position) that the kernel may overwrite as it likes, and return: memory that the caller lends it."""
    check: Callable[[list[Any], list[Any]], str] | None = None
    """A check of the task's own, besides ours: `check(inputs, outputs)` says what is wrong, or nothing. Outputs are in
    the reference's order. It can only refuse."""
    certain: Sequence[str] = ("bytes", "flops")
    """Which of the two no kernel can do with less of. The other is what the reference moves or does: good for rates,
    but an algorithm may save some of it, so that no time is called impossible by it."""
    comparisons: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Other implementations to time beside the kernel: `{"torch": ..., "torch.compile": ...}`."""
    adapter: str = ""
    """How a candidate is called that is no function of these inputs: a module of `kopt_mcp.problems.adapters`."""
    adapter_spec: Mapping[str, Any] = field(default_factory=dict)
    """What the adapter is told, as JSON."""
    kernel: str = ""
    """Path of the kernel that the command line takes by default; empty: looked for beside the problem file."""

    def __post_init__(self) -> None:
        if not self.entry:
            object.__setattr__(self, "entry", self.name.replace("-", "_"))
        _require("workloads", self.workloads, Workload, "a list of Workload")
        if not self.workloads:
            raise ProblemError("Problem.workloads is empty; declare at least one Workload.")
        self._of_the_right_kinds()
        names = [w.name for w in self.workloads]
        if double := {n for n in names if names.count(n) > 1}:
            raise ProblemError(f"Problem.workloads has two workloads named {sorted(double)}; give each its own name.")
        _subset("distributions", self.distributions, DISTRIBUTIONS)
        _subset("layouts", self.layouts, LAYOUTS)
        if "large" not in self.distributions:  # what overflows in every row overflows in one
            object.__setattr__(self, "distributions", tuple(d for d in self.distributions if d != "mixed"))
        if self.bound not in ("memory", "compute", "latency"):
            raise ProblemError(f"Problem.bound is {self.bound!r}; expected 'memory', 'compute' or 'latency'.")
        for workload in self.workloads:
            self.case(workload)

    def _of_the_right_kinds(self) -> None:
        """See that what is given as a collection is one, before it fails somewhere else.

        Raises:
            ProblemError: it is not.
        """
        for name in ("mutates", "scratch"):
            _require(name, getattr(self, name), int, "positions of inputs, as in (0,)")
        if not isinstance(self.tolerance, Mapping) or not all(
            isinstance(t, Tolerance) for t in self.tolerance.values()
        ):
            raise ProblemError(
                f"Problem.tolerance is {self.tolerance!r}; expected a Tolerance for a dtype, in rounding errors, as in "
                '{"float32": Tolerance(8)}.'
            )
        for name, ends in self.vary.items():
            if not (isinstance(ends, Sequence) and len(ends) == 2 and all(isinstance(n, int) for n in ends)):
                raise ProblemError(f"Problem.vary[{name!r}] is {ends!r}; expected (lowest, highest), both integers.")
            if ends[0] > ends[1]:
                raise ProblemError(f"Problem.vary[{name!r}] is {ends!r}; expected the lower one first.")

    def for_device(self, kind: str, names: Sequence[str] | None = None) -> list[Workload]:
        """The workloads meant for `cpu` or `cuda`, or those of them that are named.

        Raises:
            ProblemError: none is left, or a name is not a workload of this device.
        """
        here = [w for w in self.workloads if kind in w.devices]
        if not here:
            mend = f"add {kind!r} to a Workload's devices."
            if self.adapter:
                mend = "large ones, and those in bfloat16, are for a GPU only; give it smaller ones, or use a GPU."
            raise ProblemError(f"problem {self.name!r} has no workload for {kind}; {mend}")
        if names is None:
            return here
        known = {w.name: w for w in here}
        if unknown := [n for n in names if n not in known]:
            raise ProblemError(f"problem {self.name!r} has no {kind} workload {unknown[0]!r}; it has {sorted(known)}.")
        return [known[n] for n in names]

    def case(self, workload: Workload, **override: Any) -> Case:
        """A workload with its inputs described and its cost computed; `override` replaces single params."""
        params = {**workload.params, **override}
        make = Make(workload.dtype)
        where = f"for workload {workload.name!r} ({params})"
        try:
            made = self.inputs(make, **params)
        except ProblemError:
            raise
        except Exception as error:
            raise ProblemError(f"Problem.inputs failed {where}: {type(error).__name__}: {error}.") from error
        if not isinstance(made, (list, tuple)):
            raise ProblemError(
                f"Problem.inputs returns a {type(made).__name__} {where}; expected a list of the kernel's arguments."
            )
        inputs = tuple(made)
        for position, item in enumerate(inputs):
            if not isinstance(item, Spec) and not _plain(item):
                raise ProblemError(
                    f"Problem.inputs: argument {position} is a {type(item).__name__} {where}; expected a number, a "
                    "text, None, or a tensor described by make.normal, make.integers, ..., so that each call gets new "
                    "values (make.literal(tensor) for the same ones)."
                )
        self._fits(inputs, params)
        size = {"itemsize": DTYPES[workload.dtype], **params}
        return Case(
            workload=workload,
            params=params,
            inputs=inputs,
            literals=tuple(make.literals),
            bytes=_formula("bytes", self.bytes, size),
            flops=_formula("flops", self.flops, size),
        )

    def _fits(self, inputs: Sequence[Any], params: Mapping[str, Any]) -> None:
        """See that what names an input or a param means one.

        Raises:
            ProblemError: it does not.
        """
        for name in ("mutates", "scratch"):
            if wrong := [n for n in getattr(self, name) if not 0 <= n < len(inputs)]:
                raise ProblemError(f"Problem.{name} names input {wrong[0]}; there are {len(inputs)}, counted from 0.")
        known = {*params, *(f"in{n}" for n in range(len(inputs)))}
        if unknown := [a for a in self.arguments if a not in known and not re.fullmatch(r"out\d+", a)]:
            raise ProblemError(
                f"Problem.arguments names {unknown[0]!r}, which is neither an output (out0, ...) nor one of "
                f"{sorted(known)}."
            )

    def reduction_length(self, params: Mapping[str, Any]) -> float:
        """K of the tolerance rule for these params; 0 where the problem declares none."""
        return _formula("reduction", self.reduction, params) if self.reduction else 0.0

    def tolerance_for(self, dtype: str) -> Tolerance:
        """The tolerance for outputs of a workload in `dtype`."""
        return self.tolerance.get(dtype, Tolerance())

    def main(self, argv: Sequence[str] | None = None) -> int:
        """The command line of a problem file: check and time a kernel, 0 only if it is right."""
        from kopt_mcp.evaluator.script import run

        return run(self, argv)

    def as_test(self) -> Callable[[], None]:
        """A function for pytest to collect: fails with the evaluator's words when the kernel is wrong."""
        from kopt_mcp.evaluator.script import as_test

        return as_test(self)


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise ProblemError(f"dtype {name!r} is not known; expected one of {sorted(DTYPES)}.")
    return name


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ProblemError(
            f"shape {tuple(shape)} must be non-negative integers, given one by one: make.normal(rows, cols)."
        )
    return tuple(shape)


def _range(dtype: str) -> tuple[int, int]:
    """The smallest and the largest integer of a type; of a floating one those that are exact in it, at least."""
    if dtype in ("bool", "uint8"):
        return (0, 1) if dtype == "bool" else (0, 255)
    bits = 8 * DTYPES[dtype] - 1
    return -(1 << bits), (1 << bits) - 1


def _plain(value: Any) -> bool:
    """Whether a value can be sent to another process as it is."""
    if isinstance(value, (list, tuple)):
        return all(_plain(one) for one in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _require(name: str, value: Any, of: type, expected: str) -> None:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, of) for one in value):
        raise ProblemError(f"Problem.{name} is {repr(value)[:80]}; expected {expected}.")


def _subset(field_name: str, given: Sequence[str], allowed: Sequence[str]) -> None:
    if unknown := [g for g in given if g not in allowed]:
        raise ProblemError(f"Problem.{field_name} holds {unknown}; expected a subset of {list(allowed)}.")


def _formula(field_name: str, text: str, names: Mapping[str, Any]) -> float:
    """Evaluate an arithmetic formula over the params; `min`, `max`, `ceil` and `log2` may be called."""
    allowed = {"min": min, "max": max, "ceil": math.ceil, "log2": math.log2}
    if not isinstance(text, str):
        raise ProblemError(f"Problem.{field_name} is {text!r}; expected a formula as a text, as in '2 * n * itemsize'.")
    try:
        tree = ast.parse(text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in names and node.id not in allowed:
                raise ProblemError(
                    f"Problem.{field_name} uses {node.id!r}, which is not a param; there are {sorted(names)}."
                )
        value = eval(compile(tree, f"<{field_name}>", "eval"), {"__builtins__": {}}, {**allowed, **names})
    except (SyntaxError, TypeError, ZeroDivisionError) as error:
        raise ProblemError(
            f"Problem.{field_name} = {text!r} is not a formula over {sorted(names)}: {error}."
        ) from error
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ProblemError(f"Problem.{field_name} = {text!r} gives {value!r}; expected a number of at least 0.")
    return float(value)
