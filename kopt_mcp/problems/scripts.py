"""Test scripts that check and time a kernel themselves and print JSON: run as they are, their figures as reported.

The contract: `python test_x.py --json` prints lines for people and one JSON object, on one line or indented, and exits
with 0 only if everything is right. The object holds

    correctness   true or false          status    "pass" or "fail"; at least one of the two
    latency_us    time of one call       gbps, tflops   rates
    speedup, vs_pytorch or avg_vs_pytorch          ratio to what the script compares with
    benchmarks    a list of such objects, one a size, whose kernel may be named in the key: triton_us, triton_tflops

The kernel under test runs in the script's own process and could print whatever it likes. `parse` therefore takes
nothing for a pass but one report that contradicts neither itself nor the exit code, and a pass is never more than the
script's word.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kopt_mcp.problem import Problem, ProblemError
from kopt_mcp.problems import Recognition
from kopt_mcp.problems.reading import no_constant, once, tree_of

NAME = "script"
EXPECTED = "a Python program that takes --json and prints an object with correctness or status"
VERDICTS = ("correctness", "status")
RATIOS = ("speedup", "vs_pytorch", "avg_vs_pytorch")
NAMES = ("workload", "size", "shape", "name")
OTHERS = ("torch", "baseline", "reference", "ref_", "naive", "eager", "compile")
"""Parts of a key that say that a time is not the kernel's own."""
MOST = 1e12
"""Largest figure that is believed to be one, in any of the units."""


LONGEST = 1 << 20
"""Characters of output in which a report is looked for."""


@dataclass(frozen=True)
class Line:
    """One workload as a script reports it; what it does not report is None."""

    workload: str
    latency_us: float | None = None
    gbps: float | None = None
    tflops: float | None = None
    speedup: float | None = None


@dataclass(frozen=True)
class Report:
    """What a run of a script comes to."""

    status: Literal["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "TIMEOUT", "SUSPECT", "INCONCLUSIVE"]
    detail: str
    kernel: str = ""
    lines: tuple[Line, ...] = ()
    """Empty unless it passed."""


class Unusable(Exception):
    """The output is not one report that can be taken at its word."""


def recognise(path: Path) -> Recognition | str:
    """Whether a file is a program that takes `--json` and names what the contract's object holds."""
    if path.suffix != ".py":
        return f"{path.name} does not end in .py; expected {EXPECTED}."
    texts = _texts(tree_of(path))
    if "--json" not in texts:
        return f"{path.name} does not take '--json'; expected {EXPECTED}."
    words = [word for word in VERDICTS if word in texts]
    found = tuple(f"{word!r}, line {texts[word]}" for word in ["--json", *words])
    missing = () if words else (f"{path.name} prints neither 'correctness' nor 'status'; expected one of them.",)
    return Recognition(NAME, path, (path,), found, missing, name=path.stem.removeprefix("test_"), trust="reported")


def load(path: Path, *, kernel: Path | None = None) -> Problem:
    """Never possible: a script keeps its reference and its inputs to itself."""
    del kernel
    raise ProblemError(f"{path.name} is a script that judges itself: it has no reference to load. {HOW_TO_MEASURE}")


HOW_TO_MEASURE = (
    "Its figures are taken as reported, and certify nothing; to have the kernel checked and timed, write a Problem "
    "(kopt-mcp import, or reference and shapes in baseline's arguments)."
)


def parse(stdout: str, code: int) -> Report:
    """What a script's output and exit code say together: a pass only where both say so, once, and nothing else does."""
    if len(stdout) > LONGEST:
        return Report("INCONCLUSIVE", f"the script printed more than {LONGEST} characters; no report is looked for")
    try:
        report = _only_report(stdout)
    except Unusable as error:
        if code != 0:
            return Report("RUNTIME_ERROR", f"the script exited with code {code}, and {error}")
        return Report("INCONCLUSIVE", f"the script exited with code 0, but {error}")
    claims = _claims(report)
    kernel = report["kernel"] if isinstance(report.get("kernel"), str) else ""
    if wrong := [text for text, right in claims if not right]:
        return Report("INCORRECT_NUMERICAL", f"the script says {wrong[0]}{_reason(report)}", kernel)
    if code != 0:
        said = claims[0][0]
        return Report("SUSPECT", f"the script says {said}, but exited with code {code}: it contradicts itself", kernel)
    try:
        return Report("PASSED", f"the script says {claims[0][0]}", kernel, _lines(report))
    except Unusable as error:
        return Report("INCONCLUSIVE", f"the script says {claims[0][0]}, but {error}", kernel)


def _only_report(stdout: str) -> dict[str, Any]:
    """The one object of the output that holds a verdict.

    Raises:
        Unusable: there is none, there are several, or one is broken.
    """
    reports = [found for found in _objects(stdout) if any(word in found for word in VERDICTS)]
    if not reports:
        raise Unusable(f"printed no JSON object with {' or '.join(VERDICTS)} at the beginning of a line")
    if len(reports) > 1:
        raise Unusable(f"printed {len(reports)} reports; which is the script's own cannot be told")
    for place in [reports[0], *_benchmarks(reports[0])]:
        _check_verdicts(place)
    return reports[0]


def _objects(stdout: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that begin at the beginning of a line and end at the end of one.

    Raises:
        Unusable: something that begins like one, and speaks of a verdict, is none.
    """
    decoder = json.JSONDecoder(object_pairs_hook=once, parse_constant=no_constant)
    position = 0
    while (start := _next_brace(stdout, position)) is not None:
        try:
            found, end = decoder.raw_decode(stdout, start)
            if stdout[end:].split("\n", 1)[0].strip():
                raise Unusable("printed a JSON object with something behind it on its line")
            position = end
            yield found
        except (ValueError, RecursionError, Unusable) as error:  # a ProblemError is a ValueError
            line_end = stdout.find("\n", start)
            line_end = len(stdout) if line_end < 0 else line_end
            broken = stdout[start:] if getattr(error, "pos", line_end) >= line_end else stdout[start:line_end]
            if any(f'"{word}"' in broken for word in VERDICTS):
                shown = " ".join((str(error) or "nested too deeply").split())[:120]
                raise Unusable(f"its report is broken ({shown})") from error
            position = line_end


def _next_brace(text: str, position: int) -> int | None:
    """Where the next line begins with a brace, blanks before it allowed."""
    match = re.compile(r"^[ \t]*(\{)", re.MULTILINE).search(text, position)
    return match.start(1) if match else None


def _check_verdicts(place: Mapping[str, Any]) -> None:
    if "correctness" in place and not isinstance(place["correctness"], bool):
        raise Unusable(f"correctness is {repr(place['correctness'])[:40]}; expected true or false")
    if "status" in place and str(place["status"]).lower() not in ("pass", "fail"):
        raise Unusable(f"status is {repr(place['status'])[:40]}; expected 'pass' or 'fail'")


def _claims(report: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Every verdict in a report, in words, and whether it is a good one."""
    claims = []
    for place, where in [(report, ""), *((item, f" at {_name_of(item, n)}") for n, item in _numbered(report))]:
        if "correctness" in place:
            claims.append((f"correctness is {str(place['correctness']).lower()}{where}", place["correctness"] is True))
        if "status" in place:
            claims.append((f"status is {place['status']!r}{where}", str(place["status"]).lower() == "pass"))
    return claims


def _reason(report: Mapping[str, Any]) -> str:
    error = report.get("error")
    return f": {' '.join(error.split())[:300]}" if isinstance(error, str) and error.strip() else ""


def _benchmarks(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The nested reports.

    Raises:
        Unusable: `benchmarks` is no list of objects.
    """
    items = report.get("benchmarks", [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise Unusable("benchmarks is no list of objects")
    return items


def _numbered(report: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    return list(enumerate(_benchmarks(report), start=1))


def _lines(report: Mapping[str, Any]) -> tuple[Line, ...]:
    """The figures, by workload; none where a report holds none.

    Raises:
        Unusable: a figure is none, or several may be the kernel's, or two workloads have one name.
    """
    items = _numbered(report)
    lines = [_line(item, _name_of(item, number)) for number, item in items]
    if not items:
        lines = [_line(report, _name_of(report, 0))]
    names = [line.workload for line in lines]
    if double := [name for name in names if names.count(name) > 1]:
        raise Unusable(f"benchmarks holds {double[0]!r} twice")
    whole = _ratio(report)
    lines = [line if line.speedup is not None else _with_speedup(line, whole) for line in lines]
    kinds = ("latency_us", "gbps", "tflops")
    return tuple(line for line in lines if any(getattr(line, kind) is not None for kind in kinds))


def _with_speedup(line: Line, speedup: float | None) -> Line:
    return Line(line.workload, line.latency_us, line.gbps, line.tflops, speedup)


def _line(item: Mapping[str, Any], name: str) -> Line:
    figures = {kind: _figure(item, kind, ending) for kind, ending in _ENDINGS.items()}
    return Line(name, figures["latency_us"], figures["gbps"], figures["tflops"], _ratio(item))


_ENDINGS = {"latency_us": "_us", "gbps": "_gbps", "tflops": "_tflops"}


def _figure(item: Mapping[str, Any], kind: str, ending: str) -> float | None:
    """The kernel's own figure of a kind: the plain key, else the only key that ends so and names no other program."""
    if kind in item:
        return _number(item, kind)
    own = [k for k in item if k.endswith(ending) and k != "latency_us" and not any(o in k for o in OTHERS)]
    if len(own) > 1:
        raise Unusable(f"{own[0]!r} and {own[1]!r} may both be the kernel's; name one of them {kind!r}")
    return _number(item, own[0]) if own else None


def _ratio(item: Mapping[str, Any]) -> float | None:
    return next((_number(item, key) for key in RATIOS if item.get(key) is not None), None)


def _number(item: Mapping[str, Any], key: str) -> float | None:
    """A figure; null is one that was not measured."""
    value = item[key]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unusable(f"{key} is {repr(value)[:40]}; expected a number")
    if not (0 < value < MOST) or not math.isfinite(value):
        raise Unusable(f"{key} is {repr(value)[:40]}; expected a number above 0 and below {MOST:g}")
    return float(value)


def _name_of(item: Mapping[str, Any], number: int) -> str:
    for key in NAMES:
        value = item.get(key)
        if isinstance(value, list):
            value = "x".join(str(v) for v in value)
        if isinstance(value, (str, int)) and str(value).strip():
            return " ".join(str(value).split())[:80]
    return f"benchmark {number}" if number else "reported"


def _texts(tree: ast.Module) -> dict[str, int]:
    """Every string of a program and the first line it stands on; the names of keyword arguments count too."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.setdefault(node.value, node.lineno)
        elif isinstance(node, ast.keyword) and node.arg:
            found.setdefault(node.arg, node.value.lineno)
    return found
