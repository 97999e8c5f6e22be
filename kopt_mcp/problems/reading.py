"""Read other people's files without running them, and say what is wrong with them: file, field, what was expected.

Standard library only. Whatever a file holds, the worst that comes of reading it is a `ProblemError`: it is missing, no
regular file (a pipe would block for ever), too large, of another encoding or syntax, or lacks a field.
"""

from __future__ import annotations

import ast
import json
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from kopt_mcp.problem import ProblemError

LARGEST = 1 << 20
"""Bytes of a Python or YAML file; tasks that people write by hand have a hundredth of it."""
LARGEST_DATA = 64 << 20
"""Bytes of a JSON file, which a program may have written."""
_KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}
_T = TypeVar("_T")


class Unlike(ProblemError):
    """A file is nothing like what a format expects: what it has not."""


def bytes_of(path: Path, most: int = LARGEST_DATA) -> bytes:
    """A regular file's content."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ProblemError(f"{path.name} is not a regular file; name the file itself.")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except ProblemError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProblemError(f"{path.name} cannot be read: {reason}; check the path.") from error
    if len(data) > most:
        raise ProblemError(f"{path.name} has more than {most} bytes; expected a task that somebody wrote.")
    return data


def text_of(path: Path, most: int = LARGEST) -> str:
    """A file's text, without a byte order mark."""
    data = bytes_of(path, most)
    if b"\0" in data:
        raise ProblemError(f"{path.name} is binary (it holds a zero byte); expected text.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path.name} is not UTF-8 at byte {error.start}; save it as UTF-8.") from error


def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a Python file; nothing of it runs."""
    if path.suffix != ".py":
        raise Unlike(f"{path.name} does not end in .py")
    text = text_of(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # the author's style is not our business
            return ast.parse(text)
    except SyntaxError as error:
        line = (error.text or "").strip()[:120]
        raise ProblemError(f"{path.name} line {error.lineno} does not parse: {line!r}: {error.msg}.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProblemError(f"{path.name} does not parse: {error or 'nested too deeply'}.") from error


def json_of(path: Path, text: str | None = None) -> Any:
    """The value of a JSON file, or of `text`, which is one line of it; two fields of one name are refused."""
    text = text_of(path, LARGEST_DATA) if text is None else text
    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=no_constant)
    except ProblemError as error:
        raise ProblemError(f"{path.name}: {error}") from error
    except (ValueError, RecursionError) as error:
        shown = " ".join(str(error).split())[:200] or "nested too deeply"
        raise ProblemError(f"{path.name} is not JSON: {shown}.") from error


def field(holder: Any, name: str, kind: type[_T], where: str, otherwise: Any = ...) -> _T:
    """The value of a field, which must be of a kind (a bool is no int); `where` names file and place.

    Args:
        otherwise: the value where there is none, or null; without it the field must be there.
    """
    if not isinstance(holder, dict):
        raise ProblemError(f"{where} is {repr(holder)[:60]}; expected an object with {name}.")
    if otherwise is not ... and holder.get(name) is None:
        return otherwise  # type: ignore[no-any-return]
    if name not in holder:
        there = sorted(map(str, holder))[:12]
        raise ProblemError(f"{where} has no field {name!r}; expected {_KINDS[kind]}; there are {there}.")
    value = holder[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ProblemError(f"{where}: field {name!r} is {repr(value)[:80]}; expected {_KINDS[kind]}.")
    return value


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return sha256(bytes_of(path)).hexdigest()


def defined(tree: ast.Module) -> dict[str, ast.stmt]:
    """What a module defines at its top: functions, classes and assigned names, the last of a name."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def constant(node: ast.stmt | None) -> Any:
    """The value of an assignment of literals, such as `KERNEL_TYPE = "softmax"`; None where it is anything else."""
    value = getattr(node, "value", None)
    try:
        return ast.literal_eval(value) if isinstance(value, ast.expr) else None
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json: an object, each field given once."""
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ProblemError(f"the field {double!r} is given twice; give it once.")
    return made


def no_constant(name: str) -> Any:
    """For json: NaN and Infinity are refused."""
    raise ProblemError(f"{name} is not JSON; give a number.")


@contextmanager
def noted(missing: list[str]) -> Iterator[None]:
    """Note what is wrong with a part of a task, and go on with the others."""
    try:
        yield
    except ProblemError as error:
        missing.append(str(error).rstrip("."))


def slug(text: str) -> str:
    """A name for a task or a file: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80] or "task"


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with their numbers where several are the same."""
    return [name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names)]
