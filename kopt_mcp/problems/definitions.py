"""Definitions and workloads of FlashInfer-Bench and SOL-ExecBench, read and checked.

A *definition* names axes, inputs, outputs and a reference `run` as Python source. A *workload* gives the variable axes
numbers and says where each input comes from. Standard library only; nothing is executed. Whatever is wrong ends in a
ProblemError with file, line, field, and what was expected.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt_mcp.problem import DTYPES, ProblemError
from kopt_mcp.problems.reading import LARGEST_DATA, defined, distinct, field, json_of, text_of

WORKLOADS = ("workload.jsonl", "workloads.jsonl")
LARGEST_AXIS = 1 << 40
MOST_WORKLOADS = 2000
SOURCES = ("custom", "random", "safetensors", "scalar")
_UP = 6
"""Folders above a definition in which the files may lie that its workloads name."""
_ARITHMETIC = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.UnaryOp, ast.BinOp, ast.Compare),
    *(ast.unaryop, ast.operator, ast.cmpop),
)


@dataclass(frozen=True)
class Tensor:
    """One input or output of a definition; `axes` is None for a Python number."""

    name: str
    axes: tuple[str, ...] | None
    dtype: str
    description: str


@dataclass(frozen=True)
class Definition:
    """What is to be computed."""

    name: str
    op_type: str
    declared: Mapping[str, int | str | None]
    """Each axis: its size, an expression over the others, or None where the workload says it."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    reference: str
    custom: str | None
    """Function of the reference that draws the inputs marked `custom`."""
    constraints: tuple[str, ...]

    def axes(self, given: Mapping[str, int]) -> dict[str, int]:
        """All axes as numbers, for the values of the variable ones."""
        known = {**given, **{name: size for name, size in self.declared.items() if isinstance(size, int)}}
        for name, text in self.declared.items():
            if not isinstance(text, str):
                continue
            value = _evaluated(text, known)
            if not isinstance(value, float) or not value.is_integer() or not 0 <= value <= LARGEST_AXIS:
                raise ProblemError(f"axes.{name}: {text!r} gives {value} for {dict(given)}; expected a whole number.")
            known[name] = int(value)
        return known


@dataclass(frozen=True)
class Workload:
    """A definition with numbers, and where its inputs come from."""

    axes: Mapping[str, int]
    inputs: Mapping[str, Mapping[str, Any]]
    written: Mapping[str, Any]
    """The workload as it was written, for a trace."""
    in_trace: bool = False
    """Whether it was written as a trace without a result, as FlashInfer-Bench does and SOL-ExecBench does not."""


def definition_of(path: Path) -> Definition:
    """Read and check a definition."""
    value, where = json_of(path), path.name
    axes = field(value, "axes", dict, where)
    declared = {name: _declared(axis, f"{where}: axes.{name}") for name, axis in axes.items()}
    inputs, outputs = (_tensors(value, kind, declared, where) for kind in ("inputs", "outputs"))
    if double := {t.name for t in inputs} & {t.name for t in outputs}:
        raise ProblemError(f"{where}: {sorted(double)[0]!r} is an input and an output; expected different names.")
    custom = field(value, "custom_inputs_entrypoint", str, where, None)
    reference = field(value, "reference", str, where)
    _check_reference(reference, custom, where)
    return Definition(
        name=field(value, "name", str, where),
        op_type=str(value.get("op_type") or ""),
        declared=declared,
        inputs=inputs,
        outputs=outputs,
        reference=reference,
        custom=custom,
        constraints=tuple(map(str, field(value, "constraints", list, where, []))),
    )


def _declared(axis: Any, where: str) -> int | str | None:
    kind = field(axis, "type", str, where)
    if kind == "const":
        return _axis(axis, "value", where)
    if kind == "expr":
        return field(axis, "expression", str, where)
    if kind != "var":
        raise ProblemError(f"{where}: field 'type' is {kind[:40]!r}; expected 'const', 'var' or 'expr'.")
    return None


def _axis(holder: Mapping[str, Any], name: str, where: str) -> int:
    value = field(holder, name, int, where)
    if not 0 <= value <= LARGEST_AXIS:
        raise ProblemError(f"{where}: field {name!r} is {value}; expected 0 to {LARGEST_AXIS}.")
    return value


def _tensors(value: Any, kind: str, axes: Collection[str], where: str) -> tuple[Tensor, ...]:
    found = []
    for name, one in field(value, kind, dict, where).items():
        here = f"{where}: {kind}.{name}"
        dtype, shape = field(one, "dtype", str, here), field(one, "shape", list, here, None)
        if unknown := [a for a in shape or () if not isinstance(a, str) or a not in axes]:
            raise ProblemError(
                f"{here}: field 'shape' names {unknown[0]!r}, which is no axis; there are {sorted(axes)[:12]}."
            )
        if dtype not in DTYPES:
            raise ProblemError(f"{here}: field 'dtype' is {dtype[:40]!r}; expected one of {', '.join(DTYPES)}.")
        found.append(Tensor(name, None if shape is None else tuple(shape), dtype, str(one.get("description") or "")))
    if not found and kind == "outputs":
        raise ProblemError(f"{where}: field 'outputs' is empty; expected one output at least.")
    return tuple(found)


def _check_reference(text: str, custom: str | None, where: str) -> None:
    try:
        there = defined(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProblemError(f"{where}: field 'reference' is no Python: {str(error)[:120]}.") from error
    for name in ("run", *([custom] if custom else ())):
        if name not in there:
            raise ProblemError(f"{where}: field 'reference' defines no {name!r}; expected a function at its top.")


def workload_file(main: Path) -> list[Path]:
    """Beside the definition, or where the FlashInfer-Trace data set has it: `workloads/` in place of `definitions/`."""
    tries = [main.parent / name for name in WORKLOADS]
    parts = main.parts
    if "definitions" in parts:
        at = len(parts) - 1 - parts[::-1].index("definitions")
        tries.append(Path(*parts[:at], "workloads", *parts[at + 1 :]).with_suffix(".jsonl"))
    return [path for path in tries if path.is_file()][:1]


def data_file(main: Path, name: str) -> Path:
    """The file that a workload names, relative to the definition's folder or to one above it."""
    plain = "\0" not in name and not name.startswith("/") and ".." not in Path(name).parts
    for folder in main.resolve().parents[:_UP] if plain else ():
        if (folder / name).is_file():
            return folder / name
    raise ProblemError(
        f"{main.name}: a workload takes an input from {name[:120]!r}, which is not there; fetch it first."
    )


def workloads_of(main: Path, definition: Definition) -> list[Workload]:
    """Find, read and check the workloads of the definition in `main`, one a line, bare or as traces."""
    made = []
    for path in workload_file(main):
        for number, line in enumerate(text_of(path, LARGEST_DATA).splitlines(), 1):
            if line.strip():
                made.append(_workload(json_of(path, line), definition, f"{path.name} line {number}"))
        if not 0 < len(made) <= MOST_WORKLOADS:
            raise ProblemError(f"{path.name} has {len(made)} workloads; expected 1 to {MOST_WORKLOADS}.")
        return made
    raise ProblemError(f"{main.name} has no {WORKLOADS[0]} beside it; expected the workloads, one a line.")


def _workload(value: Any, definition: Definition, where: str) -> Workload:
    in_trace = isinstance(value, dict) and isinstance(value.get("workload"), dict)
    if in_trace:
        if value.get("definition") not in (None, definition.name):
            raise ProblemError(f"{where}: field 'definition' is not {definition.name!r}; expected its workloads.")
        value = value["workload"]
    given, inputs = field(value, "axes", dict, where), field(value, "inputs", dict, where)
    axes = {name: _axis(given, name, f"{where}: axes") for name, size in definition.declared.items() if size is None}
    known = definition.axes(axes)
    for text in definition.constraints:
        if _evaluated(text, known) is False:
            raise ProblemError(f"{where}: axes {axes} contradict the definition's constraint {text[:80]!r}.")
    sources = {
        t.name: _source(inputs.get(t.name, {"type": "random"}), t, f"{where}: inputs.{t.name}")
        for t in definition.inputs
    }
    if any(s["type"] == "custom" for s in sources.values()) and definition.custom is None:
        raise ProblemError(f"{where}: an input is 'custom', but the definition has no custom_inputs_entrypoint.")
    return Workload(axes, sources, dict(value), in_trace)


def _source(given: Any, tensor: Tensor, where: str) -> Mapping[str, Any]:
    """Where one input comes from, checked."""
    kind = field(given, "type", str, where)
    if kind not in SOURCES:
        raise ProblemError(f"{where}: field 'type' is {kind[:40]!r}; expected one of {', '.join(SOURCES)}.")
    if kind == "scalar":
        value = given.get("value")
        if type(value) not in (int, float, bool) or (type(value) is float and not math.isfinite(value)):
            raise ProblemError(f"{where}: field 'value' is {str(value)[:40]!r}; expected a number, true or false.")
    elif kind == "safetensors":
        field(given, "path", str, where)
        field(given, "tensor_key", str, where)
    elif tensor.axes is None:
        raise ProblemError(f"{where}: a number comes from {kind!r}; expected 'scalar' with its value.")
    return dict(given)


def names_of(workloads: Iterable[Workload]) -> list[str]:
    """A name for each workload: its axes, and its number where two have the same."""
    return distinct(["-".join(f"{name}{value}" for name, value in w.axes.items()) or "fixed" for w in workloads])


def _evaluated(text: str, names: Mapping[str, int]) -> float | bool | None:
    """An arithmetic expression over axes as a number or a truth value; None where it holds anything else.

    Computed in floating point, where no power takes more than its time; exact up to 2**53, far above any axis.
    """
    try:
        tree = ast.parse(text, mode="eval")
        for node in ast.walk(tree):
            if not isinstance(node, _ARITHMETIC):
                return None
            if isinstance(node, ast.Constant):
                if type(node.value) not in (int, float):
                    return None
                node.value = float(node.value)  # type: ignore[arg-type]
        value = eval(compile(tree, "<axes>", "eval"), {"__builtins__": {}}, {n: float(v) for n, v in names.items()})
    except (SyntaxError, ValueError, TypeError, ArithmeticError, NameError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, (float, bool)) else None
