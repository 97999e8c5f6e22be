"""What a test script that checks and times a kernel itself says of it: one JSON object among its output.

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

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from kopt_mcp.problems.reading import no_constant, once
from kopt_mcp.problems.script import VERDICTS

RATIOS = ("speedup", "vs_pytorch", "avg_vs_pytorch")
FIGURES = {"latency_us": "_us", "gbps": "_gbps", "tflops": "_tflops"}
"""What a report may hold besides, and what a key ends in that names the kernel too."""
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
    """The output is not one report that can be taken at its word: there is none, or several, or one is broken."""


def parse(stdout: str, code: int) -> Report:
    """What a script's output and exit code say together: a pass only where both say so, once, and nothing else does."""
    if len(stdout) > LONGEST:
        return Report("INCONCLUSIVE", f"the script printed more than {LONGEST} characters; no report is looked for")
    try:
        report = _only_report(stdout)
        claims = _claims(report)
    except Unusable as error:
        if code != 0:
            return Report("RUNTIME_ERROR", f"the script exited with code {code}, and {error}")
        return Report("INCONCLUSIVE", f"the script exited with code 0, but {error}")
    said = f"the script says {claims[0][0]}"
    kernel = report["kernel"] if isinstance(report.get("kernel"), str) else ""
    if wrong := [text for text, right in claims if not right]:
        return Report("INCORRECT_NUMERICAL", f"the script says {wrong[0]}{_reason(report)}", kernel)
    if code != 0:
        return Report("SUSPECT", f"{said}, but exited with code {code}: it contradicts itself", kernel)
    try:
        return Report("PASSED", said, kernel, _lines(report))
    except Unusable as error:
        return Report("INCONCLUSIVE", f"{said}, but {error}", kernel)


def _only_report(stdout: str) -> dict[str, Any]:
    """The one object of the output that holds a verdict."""
    reports = [found for found in _objects(stdout) if any(word in found for word in VERDICTS)]
    if not reports:
        raise Unusable(f"printed no JSON object with {' or '.join(VERDICTS)} at the beginning of a line")
    if len(reports) > 1:
        raise Unusable(f"printed {len(reports)} reports; which is the script's own cannot be told")
    return reports[0]


def _objects(stdout: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that begin at the beginning of a line, blanks before it allowed, and end at the end of one."""
    decoder = json.JSONDecoder(object_pairs_hook=once, parse_constant=no_constant)
    brace, position = re.compile(r"^[ \t]*(\{)", re.MULTILINE), 0
    while match := brace.search(stdout, position):
        start = match.start(1)
        try:
            found, end = decoder.raw_decode(stdout, start)
            if stdout[end:].split("\n", 1)[0].strip():
                raise Unusable("printed a JSON object with something behind it on its line")
            position = end
            yield found
        except (ValueError, RecursionError, Unusable) as error:  # a ProblemError is a ValueError
            line_end = stdout.find("\n", start)
            position = line_end if line_end >= 0 else len(stdout)
            broken = stdout[start:] if getattr(error, "pos", position) >= position else stdout[start:position]
            if any(f'"{word}"' in broken for word in VERDICTS):
                shown = " ".join((str(error) or "nested too deeply").split())[:120]
                raise Unusable(f"its report is broken ({shown})") from error


def _claims(report: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Every verdict in a report, in words, and whether it is a good one."""
    claims = []
    inner = [(item, f" at {_name_of(item, number)}") for number, item in enumerate(_benchmarks(report), 1)]
    for place, where in [(report, ""), *inner]:
        if "correctness" in place:
            right = place["correctness"]
            if not isinstance(right, bool):
                raise Unusable(f"correctness is {repr(right)[:40]}; expected true or false")
            claims.append((f"correctness is {str(right).lower()}{where}", right))
        if "status" in place:
            status = place["status"]
            if str(status).lower() not in ("pass", "fail"):
                raise Unusable(f"status is {repr(status)[:40]}; expected 'pass' or 'fail'")
            claims.append((f"status is {status!r}{where}", str(status).lower() == "pass"))
    return claims


def _reason(report: Mapping[str, Any]) -> str:
    error = report.get("error")
    return f": {' '.join(error.split())[:300]}" if isinstance(error, str) and error.strip() else ""


def _benchmarks(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The nested reports."""
    items = report.get("benchmarks", [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise Unusable("benchmarks is no list of objects")
    return items


def _lines(report: Mapping[str, Any]) -> tuple[Line, ...]:
    """The figures, by workload; none where a report holds none."""
    lines = [_line(item, number) for number, item in enumerate(_benchmarks(report), 1)] or [_line(report, 0)]
    names = [line.workload for line in lines]
    if double := [name for name in names if names.count(name) > 1]:
        raise Unusable(f"benchmarks holds {double[0]!r} twice")
    whole = _ratio(report)
    lines = [line if line.speedup is not None else replace(line, speedup=whole) for line in lines]
    return tuple(line for line in lines if any(getattr(line, kind) is not None for kind in FIGURES))


def _line(item: Mapping[str, Any], number: int) -> Line:
    figures = {kind: _figure(item, kind, ending) for kind, ending in FIGURES.items()}
    return Line(_name_of(item, number), **figures, speedup=_ratio(item))


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
    if not 0 < value < MOST:
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
