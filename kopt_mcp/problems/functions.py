"""Plain functions as a problem: a reference by name and a list of shapes, without a file of its own.

reference   torch:softmax(dim=-1)   package.module:function, or file.py:function; literal arguments are added to
                                    each call of it
shapes      4096x4096               one workload each; its inputs separated by commas, and each of them
            4096x4096,4096          a tensor of the workload's type, normally distributed,
            4096:int32<1000         a tensor of another type; integers are drawn from [0, the number after <),
            4096,=1e-5              or a plain value
dtypes      float32, bfloat16       each shape is a workload in each of them; without any in the type of its first
                                    floating tensor, or in float32

What cannot be read ends in a ProblemError that quotes it, and says what was expected. An agent gives these as the
arguments of a call, and the function is run by who judges: so it takes a tensor first, and is none of Python's own
library, nor of what torch has besides operations on tensors (os:system is given a text, and torch:save writes files).
"""

from __future__ import annotations

import ast
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt_mcp.problem import DTYPES, Input, Make, ProblemError, Spec
from kopt_mcp.problems import Recognition

_PLACE = re.compile(r"(?P<where>[\w./-]+):(?P<name>[A-Za-z_]\w*)(?P<call>\(.*\))?", re.DOTALL)
_TENSOR = re.compile(r"(?P<sizes>\d{1,12}(x\d{1,12}){0,15})(:(?P<dtype>[a-z]+\d*)(<(?P<high>\d{1,18}))?)?")
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


def place(text: str) -> Place:
    """Read `module:function(argument=literal)`."""
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        raise ProblemError(
            f"reference {text[:80]!r} names no function; expected module:function or file.py:function, such as "
            "torch:softmax(dim=-1)."
        )
    try:
        call = ast.parse(f"f{match['call'] or '()'}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
            raise ValueError("expected named arguments only")
        arguments = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ProblemError(
            f"reference {text[:80]!r}: its arguments cannot be read: {str(error)[:100]}; expected literals by name, "
            "such as (dim=-1)."
        ) from error
    return Place(match["where"], match["name"], arguments)


def inputs_of(shape: str, dtype: str | None = None) -> tuple[str, list[Input]]:
    """Read one workload's inputs, of `dtype` where they do not say; without one that of the first floating tensor."""
    parts = [part.strip() for part in shape.split(",")]
    floating = (m["dtype"] for m in map(_TENSOR.fullmatch, parts) if m and "float" in (m["dtype"] or ""))
    make = Make(dtype or next((name for name in floating if name in DTYPES), "float32"))
    return make.dtype, [_input(part, f"shape {shape[:80]!r}: ", make) for part in parts]


def recognised(
    reference: str, shapes: Sequence[str], dtypes: Sequence[str], entry: str, root: Path, kernel: Path
) -> Recognition:
    """A problem of these functions; the reference's file is a part of it where it lies below `root`."""
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
    if not where.is_file and where.where.partition(".")[0] in sys.stdlib_module_names:
        raise ProblemError(
            f"reference {reference[:80]!r} is of Python's own library, which computes nothing with tensors; expected a "
            "function of torch, of another library, or of the project."
        )
    files = _files(where, root)
    for shape in shapes:
        if not isinstance(inputs_of(shape)[1][0], Spec):
            raise ProblemError(f"shape {shape[:80]!r} begins with a plain value; expected a tensor first.")
    return Recognition(
        format="functions",
        path=files[0] if where.is_file else root,
        files=files,
        found=(
            f"reference {reference}",
            f"{len(shapes)} shape(s)",
            f"dtypes {', '.join(dtypes) or 'as in the shapes'}",
        ),
        name=entry,
        options={"reference": reference, "shapes": list(shapes), "dtypes": list(dtypes), "entry": entry},
        kernel=kernel,
    )


def _input(part: str, where: str, make: Make) -> Input:
    if part.startswith("="):
        return _plain(part[1:], where)
    match = _TENSOR.fullmatch(part)
    if match is None:
        raise ProblemError(
            f"{where}{part[:40]!r} is no input; expected sizes such as 4096x4096, with a type such as 128:int64<1000 "
            "where it is another, or a value such as =1e-5."
        )
    sizes, dtype = [int(size) for size in match["sizes"].split("x")], match["dtype"] or make.dtype
    if dtype not in DTYPES:
        raise ProblemError(f"{where}dtype {dtype!r} is not known; expected one of {', '.join(DTYPES)}.")
    if math.prod(sizes) > MOST_ELEMENTS:
        raise ProblemError(f"{where}{part[:40]!r} has more than {MOST_ELEMENTS} elements.")
    if match["dtype"] is None or "float" in dtype:
        if match["high"]:
            raise ProblemError(f"{where}{part[:40]!r}: only integers have an upper end.")
        return make.normal(*sizes, dtype=dtype)
    if not int(match["high"] or 0):
        raise ProblemError(f"{where}{part[:40]!r}: integers need their upper end, as in 128:int64<1000.")
    return make.integers(*sizes, high=int(match["high"]), dtype=dtype)


def _plain(text: str, where: str) -> Input:
    try:
        value = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, (int, float, bool, str)):
        raise ProblemError(f"{where}{text[:40]!r} is no plain value; expected a number, true or a 'text'.")
    return value


def _files(where: Place, root: Path) -> tuple[Path, ...]:
    """The reference's own file, where it is one of the project's."""
    if where.is_file:
        path = Path(os.path.normpath(root / where.where))
        if not path.is_file():
            raise ProblemError(f"reference {where.where!r} does not exist; expected a file of the project.")
        return (path,)
    base = root.joinpath(*where.where.split("."))
    return tuple(f for f in (base.with_suffix(".py"), base / "__init__.py") if f.is_file())[:1]
