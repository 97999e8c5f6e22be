"""Plain functions as a problem: a reference by name and a list of shapes, without a file of its own.

    reference   torch:softmax(dim=-1)   package.module:function, or file.py:function; literal arguments are added to
                                        each call of it
    shapes      4096x4096               one workload each; its inputs separated by commas, and each of them
                4096x4096,4096          a tensor of the workload's type, normally distributed,
                4096:int32<1000         a tensor of another type; integers are drawn from [0, the number after <),
                4096,=1e-5              or a plain value
    dtypes      float32, bfloat16       each shape is a workload in each of them; without any in the type of its first
                                        floating tensor, or in float32

The bytes are those of the inputs and of what the reference returns. How many operations a function needs cannot be read
off it: rates in operations are not known, and `gbps` or `latency_us` are the metrics to use.
"""

from __future__ import annotations

import ast
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt_mcp.problem import DTYPES, Input, Make, Problem, ProblemError, Spec, Workload
from kopt_mcp.problems import Recognition, executed

NAME = "functions"
EXPECTED = "module:function or file.py:function"
_PLACE = re.compile(r"(?P<where>[\w./-]+):(?P<name>[A-Za-z_]\w*)(?P<call>\(.*\))?", re.DOTALL)
_TENSOR = re.compile(r"(?P<sizes>\d{1,12}(x\d{1,12}){0,15})(:(?P<dtype>[a-z]+\d*)(<(?P<high>\d{1,18}))?)?")
_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
MOST_ELEMENTS = 1 << 34


@dataclass(frozen=True)
class Place:
    """Where a function is: a module's name or a file, and literal arguments that are added to each call."""

    where: str
    name: str
    arguments: dict[str, Any]

    @property
    def is_file(self) -> bool:
        """Whether it names a file, and not a module."""
        return self.where.endswith(".py")


def place(text: str, what: str = "reference") -> Place:
    """Read `module:function(argument=literal)`.

    Raises:
        ProblemError: it is written in another way; the text says what was expected.
    """
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        raise ProblemError(
            f"{what} {text[:80]!r} names no function; expected {EXPECTED}, such as torch:softmax(dim=-1)."
        )
    return Place(match["where"], match["name"], _literals(match["call"] or "()", text, what))


def inputs_of(shape: str) -> list[dict[str, Any]]:
    """Read one workload's inputs: what each tensor or plain value is, as JSON.

    Raises:
        ProblemError: an input is written in another way, or is too large.
    """
    return [_input(part.strip(), shape) for part in shape.split(",")]


def recognised(
    reference: str, shapes: Sequence[str], dtypes: Sequence[str], entry: str, root: Path, kernel: Path
) -> Recognition:
    """A problem of these functions; the reference's file is a part of it where it lies below `root`.

    Raises:
        ProblemError: the reference, a shape or a dtype cannot be read, or the reference's file is not there.
    """
    where = place(reference)
    if kernel.suffix != ".py":
        raise ProblemError(
            f"{kernel.name} is no Python file; the order of a C function's arguments cannot be told from shapes; write "
            "a problem file with Problem.arguments."
        )
    if not shapes:
        raise ProblemError("reference is given without shapes; give at least one, such as 4096x4096.")
    if unknown := [d for d in dtypes if d not in DTYPES]:
        raise ProblemError(f"dtype {unknown[0]!r} is not known; expected one of {', '.join(DTYPES)}.")
    files = _files(where, root)
    for shape in shapes:
        inputs_of(shape)
    options = {
        "reference": reference,
        "shapes": list(shapes),
        "dtypes": list(dtypes),
        "entry": entry,
    }
    found = (f"reference {reference}", f"{len(shapes)} shape(s)", f"dtypes {', '.join(dtypes) or 'as in the shapes'}")
    path = files[0] if where.is_file else root
    return Recognition(NAME, path, files, found, name=entry, options=options, kernel=kernel)


def load(
    path: Path,
    *,
    kernel: Path | None = None,
    reference: str,
    shapes: Sequence[str],
    dtypes: Sequence[str],
    entry: str,
) -> Problem:
    """The problem that these arguments describe; `path` is the reference's file, or the folder that modules lie in.

    Raises:
        ProblemError: the reference cannot be loaded, or does not take such inputs.
    """
    del kernel
    function = bound(reference, path)
    wanted: list[str | None] = [*dtypes] or [None]
    made = [_case(shape, dtype) for shape in shapes for dtype in wanted]
    workloads = [
        Workload({"case": n, "moved": one.moved(function)}, one.dtype, name=one.name) for n, one in enumerate(made)
    ]
    return Problem(
        name=entry.replace("_", "-"),
        entry=entry,
        reference=function,
        inputs=lambda make, case, moved: made[case].inputs(make),
        workloads=workloads,
        bytes="moved",
        flops="0",
        bound="memory",
    )


def bound(reference: str, path: Path) -> Callable[..., Any]:
    """The reference itself, its literal arguments added.

    Raises:
        ProblemError: the module or file does not load, or has no such function.
    """
    where = place(reference)
    holder = executed(path, "reference") if where.is_file else _module(where.where, path)
    function = getattr(holder, where.name, None)
    if not callable(function):
        raise ProblemError(f"reference {reference!r}: {where.where} has no function {where.name!r}.")
    found: Callable[..., Any] = function
    return (lambda *args: found(*args, **where.arguments)) if where.arguments else found


def _case(shape: str, dtype: str | None) -> _Case:
    described = inputs_of(shape)
    own = (one["dtype"] for one in described if "float" in (one.get("dtype") or ""))
    return _Case(shape, described, dtype or next(own, "float32"))


@dataclass(frozen=True)
class _Case:
    """One workload."""

    shape: str
    described: list[dict[str, Any]]
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.shape.replace(',', '_')}-{_SHORT.get(self.dtype, self.dtype)}"

    def inputs(self, make: Make) -> list[Input]:
        return [_described(one, make) for one in self.described]

    def moved(self, function: Callable[..., Any]) -> int:
        """Bytes of the inputs and of what the reference returns for them, from shapes alone where it can be done."""
        specs = self.inputs(Make(self.dtype))
        try:
            outputs = _outputs(function, specs, "meta")
        except Exception:  # not every function works on tensors without values
            outputs = _outputs_for_real(function, specs, self.shape)
        _check_tensors(outputs, self.shape)
        read = sum(math.prod(s.shape) * DTYPES[s.dtype] for s in specs if isinstance(s, Spec))
        return read + sum(int(t.numel()) * int(t.element_size()) for t in outputs)


def _outputs(function: Callable[..., Any], specs: Sequence[Input], device: str) -> list[Any]:
    import torch

    arguments = [
        torch.zeros(s.shape, dtype=getattr(torch, s.dtype), device=device) if isinstance(s, Spec) else s for s in specs
    ]
    returned = function(*arguments)
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _outputs_for_real(function: Callable[..., Any], specs: Sequence[Input], shape: str) -> list[Any]:
    try:
        return _outputs(function, specs, "cpu")
    except Exception as error:
        raise ProblemError(
            f"the reference does not take the inputs {shape!r}: {type(error).__name__}: {str(error)[:200]}; correct "
            "the shapes, or give it arguments, as in torch:softmax(dim=-1)."
        ) from error


def _check_tensors(outputs: Sequence[Any], shape: str) -> None:
    import torch

    if not all(isinstance(t, torch.Tensor) for t in outputs):
        kinds = ", ".join(type(t).__name__ for t in outputs)
        raise ProblemError(
            f"the reference returns {kinds} for the inputs {shape!r}; expected tensors; a function that works in place "
            "needs a problem file that says which inputs it mutates."
        )


def _described(one: Mapping[str, Any], make: Make) -> Input:
    if "value" in one:
        value: Input = one["value"]
        return value
    if one["high"] is not None:
        return make.integers(*one["shape"], high=one["high"], dtype=one["dtype"])
    return make.normal(*one["shape"], dtype=one["dtype"])


def _input(part: str, shape: str) -> dict[str, Any]:
    if part.startswith("="):
        return {"value": _plain(part[1:], shape)}
    match = _TENSOR.fullmatch(part)
    if match is None:
        raise ProblemError(
            f"shape {shape[:80]!r}: {part[:40]!r} is no input; expected sizes such as 4096x4096, with a type such as "
            "128:int64<1000 where it is another, or a value such as =1e-5."
        )
    sizes = [int(size) for size in match["sizes"].split("x")]
    dtype, high = match["dtype"], int(match["high"]) if match["high"] else None
    if dtype is not None and dtype not in DTYPES:
        raise ProblemError(f"shape {shape[:80]!r}: dtype {dtype!r} is not known; expected one of {', '.join(DTYPES)}.")
    integral = dtype is not None and "float" not in dtype
    if integral != (high is not None) or high == 0:
        wants = "integers need their upper end, as in 128:int64<1000" if integral else "only integers have an upper end"
        raise ProblemError(f"shape {shape[:80]!r}: {part[:40]!r}: {wants}.")
    if math.prod(sizes) > MOST_ELEMENTS:
        raise ProblemError(f"shape {shape[:80]!r}: {part[:40]!r} has more than {MOST_ELEMENTS} elements.")
    return {"shape": sizes, "dtype": dtype, "high": high}


def _plain(text: str, shape: str) -> Any:
    try:
        value = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, (int, float, bool, str)):
        raise ProblemError(
            f"shape {shape[:80]!r}: {text[:40]!r} is no plain value; expected a number, true or a 'text'."
        )
    return value


def _literals(call: str, text: str, what: str) -> dict[str, Any]:
    """The arguments of `(dim=-1)`."""
    try:
        node = ast.parse(f"f{call}", mode="eval").body
        if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name):
            raise ValueError("expected named arguments only")
        return {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ProblemError(
            f"{what} {text[:80]!r}: its arguments cannot be read: {str(error)[:100]}; expected literals by name, such "
            "as (dim=-1)."
        ) from error


def _files(where: Place, root: Path) -> tuple[Path, ...]:
    """The reference's own file, where it is one of the project's."""
    if where.is_file:
        path = Path(os.path.normpath(root / where.where))
        if not path.is_file():
            raise ProblemError(f"reference {where.where!r} does not exist; expected a file of the project.")
        return (path,)
    base = root.joinpath(*where.where.split("."))
    return tuple(f for f in (base.with_suffix(".py"), base / "__init__.py") if f.is_file())[:1]


def _module(name: str, folder: Path) -> Any:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ProblemError(f"reference: the module {name!r} does not load: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(str(folder))
