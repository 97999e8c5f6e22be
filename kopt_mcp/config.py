"""What an experiment is to be: the arguments of `baseline` over the keys of `kopt.yaml`, each checked on its own."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from kopt_mcp.arguments import shown
from kopt_mcp.errors import InputRefused
from kopt_mcp.models import Metric, Record

FILE = "kopt.yaml"


class Config(Record):
    """The configuration of one experiment, checked."""

    kernel_path: str
    """The file to optimise, relative to the project."""
    test_path: str | None = None
    """The problem's file, or a task of another format; found by convention when absent."""
    format: str | None = None
    """The task's format; recognised when absent."""
    reference: str | None = None
    """A function instead of a problem's file: `torch:softmax(dim=-1)`; needs `shapes`."""
    shapes: tuple[str, ...] = ()
    """Inputs of each workload, for `reference`: `4096x4096`, `128x512,512:int64<1000`."""
    dtypes: tuple[str, ...] = ()
    """Types of each shape's tensors, for `reference`; float32 when absent."""
    entry: str | None = None
    """Function of the kernel's file, for `reference`: what stands behind the colon of `kernel_path`."""
    target_metric: Metric | None = None
    """Follows the problem's bound when absent: `gbps`, `tflops` or `latency_us`."""
    target_value: float | None = None
    """In the metric's unit."""
    target_pct_of_peak: float | None = None
    """Fraction of the measured roof, above 0 and at most 1, instead of a value."""
    max_iterations: int = 5
    gpu: Literal["auto", "nvidia", "amd", "cpu"] = "auto"
    workloads: tuple[str, ...] | None = None
    """Names of the problem's workloads to use; all of the device's when absent."""
    python: str | None = None
    """Interpreter of the user's environment, for the evaluator."""
    accept_weaknesses: tuple[str, ...] = ()
    """Wrong implementations that the problem may let pass; only from the file, where a reviewer sees it."""
    accepted_problems: dict[str, str] = Field(default_factory=dict)
    """Problem files that a person has read and accepted, by path, each with its SHA-256; only from the file too."""
    memory: Literal["user", "project", "off"] = "user"
    """How far lessons of past experiments reach: over all of the user's projects, within this one, or nowhere."""


def load(root: Path, arguments: Mapping[str, Any]) -> Config:
    """The configuration from the arguments that are not None, over `kopt.yaml` where there is one.

    Raises:
        InputRefused: a key is unknown, a value is not acceptable, or two contradict each other.
    """
    given = {key: value for key, value in arguments.items() if value is not None}
    merged = read_file(root)
    if {"target_value", "target_pct_of_peak"} & set(given):
        # An argument replaces the file's target, whichever way either is put.
        merged = {k: v for k, v in merged.items() if k not in ("target_value", "target_pct_of_peak")}
    if {"test_path", "reference"} & set(given):  # so for the problem
        merged = {k: v for k, v in merged.items() if k not in ("test_path", "format", "reference", "shapes", "dtypes")}
    merged |= given
    for key, value in merged.items():
        _CHECKS[key](key, value)
    if "kernel_path" not in merged:
        raise InputRefused(f"kernel_path is missing; nothing to optimise; give it as an argument or in {FILE}.")
    if merged.get("target_value") is not None and merged.get("target_pct_of_peak") is not None:
        raise InputRefused(
            f"target_value {merged['target_value']} and target_pct_of_peak {merged['target_pct_of_peak']} are both "
            "given; only one can be the target; drop one of them."
        )
    if merged.get("target_value") is not None and merged.get("target_metric") is None:
        raise InputRefused(
            f"target_value {merged['target_value']} has no unit; give target_metric: {', '.join(get_args(Metric))}."
        )
    _check_functions(merged)
    for key in ("workloads", "accept_weaknesses", "shapes", "dtypes"):
        if merged.get(key) is not None:
            merged[key] = tuple(merged[key])
    return Config(**merged)


def _check_functions(merged: dict[str, Any]) -> None:
    """A reference has shapes, and is no file; its kernel may be named as `file.py:function`."""
    path, colon, function = str(merged["kernel_path"]).rpartition(".py:")
    if colon and function.isidentifier():
        if "reference" not in merged:
            raise InputRefused(
                f"kernel_path names the function {function!r}; with a problem's file its entry says which is called; "
                "leave it out, or give reference and shapes instead of test_path."
            )
        merged |= {"kernel_path": f"{path}.py", "entry": function}
    if "reference" in merged:
        for key in ("test_path", "format"):
            if key in merged:
                raise InputRefused(f"reference and {key} are both given; only one can be the problem; drop one.")
        if not merged.get("shapes"):
            raise InputRefused("reference is given without shapes; nothing can be drawn; give some, as in 4096x4096.")
    for key in ("shapes", "dtypes"):
        if merged.get(key) and "reference" not in merged:
            raise InputRefused(f"{key} is given without reference; a problem's file has its own; drop it.")


def read_file(root: Path) -> dict[str, Any]:
    """The keys of the project's `kopt.yaml` that have a value; empty without the file.

    Raises:
        InputRefused: not readable, not YAML, not a mapping, or with an unknown key.
    """
    import yaml  # late: it is not needed to list the tools

    path = root / FILE
    try:
        text = path.read_bytes()[: 2**16].decode()
        found = yaml.safe_load(text)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InputRefused(f"{FILE} cannot be read: {' '.join(str(error).split())[:200]}; correct the file.") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InputRefused(
            f"{FILE} holds a {type(found).__name__}; expected keys with values, such as max_iterations: 5."
        )
    for key in found:
        if key not in _CHECKS:
            near = difflib.get_close_matches(str(key), _CHECKS, n=1, cutoff=0.0)
            raise InputRefused(
                f"{FILE} has an unknown key {str(key)[:80]!r}; the nearest known is {near[0]!r}; rename it."
            )
    if found.get("memory") is False:  # YAML takes a bare `off` for the truth value
        found["memory"] = "off"
    return {key: value for key, value in found.items() if value is not None}


def _text(key: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise InputRefused(f"{key} is {shown(value)}; expected a non-empty text.")


def _positive(key: str, value: Any) -> None:
    if not _number(value) or value <= 0:
        raise InputRefused(f"{key} is {shown(value)}; expected a number above 0.")


def _fraction(key: str, value: Any) -> None:
    if not _number(value) or not 0 < value <= 1:
        hint = f" ({value / 100:g} for {value:g} %)" if _number(value) and 1 < value <= 100 else ""
        raise InputRefused(f"{key} is {shown(value)}; expected a fraction above 0 and at most 1{hint}.")


def _count(key: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1000:
        raise InputRefused(f"{key} is {shown(value)}; expected a whole number from 1 to 1000.")


def _metric(key: str, value: Any) -> None:
    _choice(key, value, get_args(Metric))


def _gpu(key: str, value: Any) -> None:
    _choice(key, value, ("auto", "nvidia", "amd", "cpu"))


def _memory(key: str, value: Any) -> None:
    _choice(key, value, ("user", "project", "off"))


def _choice(key: str, value: Any, options: tuple[str, ...]) -> None:
    if value not in options:
        near = difflib.get_close_matches(str(value).lower(), options, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputRefused(f"{key} is {shown(value)}; expected one of {', '.join(options)}{hint}")


def _names(key: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(v, str) for v in value):
        raise InputRefused(f"{key} is {shown(value)}; expected a list of names.")
    if double := sorted({v for v in value if list(value).count(v) > 1}):
        raise InputRefused(f"{key} names {shown(double[0])} twice; name each once.")


def _hashes(key: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise InputRefused(f"{key} is {shown(value)}; expected paths, each with the file's SHA-256.")
    for path, sha256 in value.items():
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise InputRefused(f"{key} gives {shown(sha256)} for {path!r}; expected a SHA-256 of 64 hex digits.")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_CHECKS = {
    "kernel_path": _text,
    "test_path": _text,
    "format": _text,
    "reference": _text,
    "shapes": _names,
    "dtypes": _names,
    "target_metric": _metric,
    "target_value": _positive,
    "target_pct_of_peak": _fraction,
    "max_iterations": _count,
    "gpu": _gpu,
    "workloads": _names,
    "python": _text,
    "accept_weaknesses": _names,
    "accepted_problems": _hashes,
    "memory": _memory,
}
