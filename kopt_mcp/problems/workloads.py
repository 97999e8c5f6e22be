"""Definitions and workloads of FlashInfer-Bench and SOL-ExecBench, read and checked.

A *definition* names axes, inputs, outputs and a reference `run` as Python source. A *workload* gives the variable axes
numbers and says where each input comes from. Standard library only; nothing is executed.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kopt_mcp.problem import DTYPES, ProblemError
from kopt_mcp.problems.reading import defined, field, json_of, text_of

LARGEST_AXIS = 1 << 40
MOST_WORKLOADS = 2000
SOURCES = {"random", "scalar", "safetensors", "custom"}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


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
    const: Mapping[str, int]
    var: tuple[str, ...]
    expressions: Mapping[str, str]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    reference: str
    custom: str | None
    """Function of the reference that draws the inputs marked `custom`."""
    constraints: tuple[str, ...]

    def axes(self, given: Mapping[str, int]) -> dict[str, int]:
        """All axes as numbers, for the values of the variable ones.

        Raises:
            ProblemError: an expression does not come to a whole number.
        """
        known = {**self.const, **given}
        for name, text in self.expressions.items():
            value = _evaluated(text, known)
            if value is None or value != int(value) or not 0 <= value <= LARGEST_AXIS:
                raise ProblemError(f"axes.{name}: {text!r} gives {value} for {dict(given)}; expected a whole number.")
            known[name] = int(value)
        return known


@dataclass(frozen=True)
class Workload:
    """A definition with numbers, and where its inputs come from."""

    uuid: str
    axes: Mapping[str, int]
    inputs: Mapping[str, Mapping[str, Any]]
    written: Mapping[str, Any]
    """The workload as it was written, for a trace."""
    in_trace: bool = False
    """Whether it was written as a trace without a result, as FlashInfer-Bench does and SOL-ExecBench does not."""


def definition_of(path: Path) -> Definition:
    """Read and check a definition.

    Raises:
        ProblemError: file, field, and what was expected.
    """
    value = json_of(path)
    if not isinstance(value, dict):
        raise ProblemError(f"{path.name} holds a {type(value).__name__}; expected an object that defines a kernel.")
    where = path.name
    const, var, expressions = _axes(field(value, "axes", dict, where), where)
    known = {*const, *var, *expressions}
    inputs = _tensors(value, "inputs", known, where)
    outputs = _tensors(value, "outputs", known, where)
    if double := {t.name for t in inputs} & {t.name for t in outputs}:
        raise ProblemError(f"{where}: {sorted(double)[0]!r} is an input and an output; expected different names.")
    custom = value.get("custom_inputs_entrypoint")
    if custom is not None and not isinstance(custom, str):
        raise ProblemError(f"{where}: field 'custom_inputs_entrypoint' is {custom!r}; expected a function's name.")
    reference = field(value, "reference", str, where)
    _check_reference(reference, custom, where)
    return Definition(
        name=field(value, "name", str, where),
        op_type=str(value.get("op_type") or ""),
        const=const,
        var=tuple(var),
        expressions=expressions,
        inputs=inputs,
        outputs=outputs,
        reference=reference,
        custom=custom,
        constraints=tuple(str(c) for c in value.get("constraints") or ()),
    )


def _axes(given: Mapping[str, Any], where: str) -> tuple[dict[str, int], list[str], dict[str, str]]:
    const: dict[str, int] = {}
    var: list[str] = []
    expressions: dict[str, str] = {}
    for name, axis in given.items():
        here = f"{where}: axes.{name}"
        if not isinstance(axis, dict):
            raise ProblemError(f"{here} is {str(axis)[:60]!r}; expected an object with a type.")
        kind = field(axis, "type", str, here)
        if kind == "const":
            const[name] = field(axis, "value", int, here)
            _check_axis(const[name], f"{here}.value")
        elif kind == "var":
            var.append(name)
        elif kind == "expr":
            expressions[name] = field(axis, "expression", str, here)
        else:
            raise ProblemError(f"{here}: field 'type' is {kind[:40]!r}; expected 'const', 'var' or 'expr'.")
    return const, var, expressions


def _check_axis(value: int, where: str) -> None:
    if not 0 <= value <= LARGEST_AXIS:
        raise ProblemError(f"{where} is {value}; expected 0 to {LARGEST_AXIS}.")


def _tensors(value: Mapping[str, Any], kind: str, axes: set[str], where: str) -> tuple[Tensor, ...]:
    found = []
    for name, one in field(value, kind, dict, where).items():
        here = f"{where}: {kind}.{name}"
        if not isinstance(one, dict):
            raise ProblemError(f"{here} is {str(one)[:60]!r}; expected an object with shape and dtype.")
        shape, dtype = one.get("shape"), field(one, "dtype", str, here)
        if shape is not None and not (isinstance(shape, list) and all(isinstance(a, str) for a in shape)):
            raise ProblemError(f"{here}: field 'shape' is {str(shape)[:60]!r}; expected a list of axes, or null.")
        if unknown := [a for a in shape or () if a not in axes]:
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


def workloads_of(path: Path, definition: Definition) -> list[Workload]:
    """Read and check the workloads of a definition, one a line, bare or as traces.

    Raises:
        ProblemError: file, line, field, and what was expected.
    """
    made = []
    for number, line in enumerate(text_of(path, 64 << 20).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path.name} line {number}"
        value = json_of(path, line)
        in_trace = isinstance(value, dict) and isinstance(value.get("workload"), dict)
        if in_trace:
            if value.get("definition") not in (None, definition.name):
                raise ProblemError(f"{where}: field 'definition' is not {definition.name!r}; expected its workloads.")
            value = value["workload"]
        if not isinstance(value, dict):
            raise ProblemError(f"{where} is no object; expected a workload with axes and inputs.")
        made.append(replace(_workload(value, definition, where), in_trace=in_trace))
    if not 0 < len(made) <= MOST_WORKLOADS:
        raise ProblemError(f"{path.name} has {len(made)} workloads; expected 1 to {MOST_WORKLOADS}.")
    return made


def _workload(value: Mapping[str, Any], definition: Definition, where: str) -> Workload:
    axes: dict[str, int] = {}
    given = field(value, "axes", dict, where)
    for name in definition.var:
        axes[name] = field(given, name, int, f"{where}: axes")
        _check_axis(axes[name], f"{where}: axes.{name}")
    known = definition.axes(axes)
    for text in definition.constraints:
        if _evaluated(text, known) is False:
            raise ProblemError(f"{where}: axes {axes} contradict the definition's constraint {text[:80]!r}.")
    inputs = field(value, "inputs", dict, where)
    sources = {
        t.name: _source(inputs.get(t.name, {"type": "random"}), t, f"{where}: inputs.{t.name}")
        for t in definition.inputs
    }
    if any(s["type"] == "custom" for s in sources.values()) and definition.custom is None:
        raise ProblemError(f"{where}: an input is 'custom', but the definition has no custom_inputs_entrypoint.")
    return Workload(str(value.get("uuid") or f"line-{where.rsplit(' ', 1)[-1]}"), axes, sources, dict(value))


def _source(given: Any, tensor: Tensor, where: str) -> Mapping[str, Any]:
    """Where one input comes from, checked."""
    if not isinstance(given, dict):
        raise ProblemError(f"{where} is {str(given)[:60]!r}; expected an object with a type.")
    kind = field(given, "type", str, where)
    if kind not in SOURCES:
        raise ProblemError(f"{where}: field 'type' is {kind[:40]!r}; expected one of {', '.join(sorted(SOURCES))}.")
    if kind == "scalar":
        value = given.get("value")
        if type(value) not in (int, float, bool) or (type(value) is float and not math.isfinite(value)):
            raise ProblemError(f"{where}: field 'value' is {str(value)[:40]!r}; expected a number, true or false.")
    elif kind == "safetensors":
        field(given, "path", str, where)
        field(given, "tensor_key", str, where)
    elif tensor.axes is None:
        raise ProblemError(f"{where}: a number comes from {kind!r}; expected 'scalar' with its value.")
    return given


def names_of(workloads: Iterable[Workload]) -> list[str]:
    """A name for each workload: its axes, and its number where two have the same."""
    plain = ["-".join(f"{name}{value}" for name, value in w.axes.items()) or "fixed" for w in workloads]
    return [name if plain.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(plain)]


def _evaluated(text: str, names: Mapping[str, int]) -> Any:
    """An expression over axes as a number or a truth value; None where it holds anything else."""
    try:
        return _value(ast.parse(text, mode="eval").body, names)
    except (SyntaxError, ValueError, TypeError, ArithmeticError, KeyError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, names: Mapping[str, int]) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = _value(node.operand, names)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, names), _value(node.right, names)
        if isinstance(node.op, ast.Pow) and abs(right) > 64:
            raise ValueError("an exponent above 64")
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        return _COMPARISONS[type(node.ops[0])](_value(node.left, names), _value(node.comparators[0], names))
    raise ValueError(ast.dump(node)[:40])
