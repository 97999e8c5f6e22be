"""What a runner's answer must hold: a field that is missing or of another kind is a lie, not a failure of ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kopt_mcp.evaluator.faults import Fault

_REPORTABLE = (
    "INCORRECT_SHAPE",
    "INCORRECT_DTYPE",
    "INCORRECT_NUMERICAL",
    "COMPILE_ERROR",
    "RUNTIME_ERROR",
    "OUT_OF_MEMORY",
    "CHEATED",
)
"""What a runner may say about itself. It can say nothing in its own favour: `PASSED` is decided by the harness."""
_MOST_NAMES = 20


def checked(op: str, reply: dict[str, Any]) -> dict[str, Any]:
    """The answer to `op`, if it is one.

    Raises:
        Fault: the runner reports a fault, or the answer is none.
    """
    if reply.get("op") != op:
        raise Fault("CHEATED", f"the candidate's process answered {str(reply.get('op'))[:40]!r} to {op!r}")
    if "fault" in reply:
        raise _reported(reply["fault"])
    if not all(fits(reply.get(name)) for name, fits in _ANSWERS.get(op, {}).items()):
        raise Fault("CHEATED", f"the candidate's process gave an answer to {op!r} that is none")
    return reply


def _reported(fault: Any) -> Fault:
    """The fault that a runner reports, if it is one that a runner may report."""
    kind, text = (fault.get("kind"), fault.get("text")) if isinstance(fault, dict) else (None, None)
    if kind not in _REPORTABLE:
        return Fault("CHEATED", f"the candidate's process reported {str(kind)[:40]!r} about itself")
    return Fault(kind, str(text)[:2000])


def is_size(value: Any) -> bool:
    """Whether this is a number of bytes or of elements."""
    return type(value) is int and 0 <= value < 1 << 62


def is_sizes(value: Any) -> bool:
    """Whether this is a shape."""
    return isinstance(value, list) and all(map(is_size, value))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_list_or_none(value: Any) -> bool:
    return value is None or isinstance(value, list)


def _is_sums(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int for n in value)


def _is_violations(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, list) and len(v) == 2 and v[0] in _REPORTABLE and isinstance(v[1], str) for v in value
    )


def _is_kernels(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(r, dict) and type(r.get("calls")) is int and _is_number(r.get("total_us")) for r in value
    )


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_NAMES


def _is_parts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values())) and len(value) <= _MOST_NAMES


def _is_times(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_number, value))


_ANSWERS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "ready": {"isolation": lambda v: isinstance(v, dict)},
    "call": {"outputs": _is_list, "violations": _is_violations, "parts": _is_parts},
    "sample": {"us": _is_number, "host_us": _is_number, "tail_us": _is_number, "print": _is_sums},
    "warm": {"us": _is_times},
    "fetch": {"outputs": _is_list},
    "timed": {"outputs": _is_list},
    "hold": {"inputs": _is_list_or_none},
    "enqueue": {"outputs": _is_list_or_none},
    "hand_over": {"outputs": _is_list},
    "profile": {"kernels": _is_kernels},
    "operators": {"names": _is_names, "overwrites": lambda v: isinstance(v, bool)},
}
