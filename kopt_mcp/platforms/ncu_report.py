"""Reads Nsight Compute's CSV in its three layouts: long (details page), wide (raw page) and the NVTX summary.

Columns are found by header name only, since they differ between versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kopt_mcp.platforms.ncu_metrics import DISPLAY_NAMES
from kopt_mcp.platforms.reports import csv_rows, number

TIME_IN_NS = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3}
TIME_UNIT = re.compile(r"^([num]?)s(?:econd)?s?$")
SCALED_UNIT = re.compile(r"^([KMGT]i?)(byte|B|hz)$", re.IGNORECASE)


@dataclass(frozen=True)
class Rule:
    """What one of ncu's own rules said about a launch."""

    name: str
    kind: str
    """`OPT`, `INF`, `WRN` or `OK`."""
    text: str
    speedup_pct: float | None


@dataclass
class Result:
    """One profiled launch as ncu printed it, in base units (ns, byte, hz, percent)."""

    kernel: str
    compute_capability: str = ""
    calls: int = 1
    values: dict[str, float | None] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)


def parse(report: str) -> list[Result]:
    """The launches in any of ncu's three CSV layouts (long, wide, NVTX summary), told apart by their headers."""
    results: dict[str, Result] = {}
    header: list[str] = []
    units: Mapping[str, str] = {}
    for row in csv_rows(report):
        if "Kernel Name" in row:
            header, units = row, {}
            continue
        cells = dict(zip(header, row, strict=False))
        if "Metric Name" in header:
            _read_metric(results, cells)
        elif "ID" in header and not cells["ID"]:
            units = cells
        elif cells.get("ID", "").isdigit():
            _read_wide(results, cells, units)
    return [result for result in results.values() if result.values or result.words or result.rules]


def _read_wide(results: dict[str, Result], cells: Mapping[str, str], units: Mapping[str, str]) -> None:
    result = results.setdefault(cells["ID"], Result(cells["Kernel Name"], cells.get("CC", "")))
    for name, text in cells.items():
        if "__" in name:
            _store(result, name, text, units.get(name, ""))


def _read_metric(results: dict[str, Result], cells: Mapping[str, str]) -> None:
    """A row of the long layout or of the NVTX summary; a rule's row has no metric."""
    kernel = cells.get("Kernel Name", "")
    calls = number(cells.get("Invocations", "")) or 1.0
    key = cells.get("ID") or f"{cells.get('Domain', '')}/{kernel}"
    result = results.setdefault(key, Result(kernel, cells.get("CC", ""), int(calls)))
    if cells.get("Rule Name"):
        speedup = number(cells.get("Estimated Speedup", ""))
        result.rules.append(Rule(cells["Rule Name"], cells["Rule Type"], cells["Rule Description"], speedup))
    elif cells.get("Metric Name"):
        _store(result, cells["Metric Name"], _value_cell(cells), cells.get("Metric Unit", ""))


def _value_cell(cells: Mapping[str, str]) -> str:
    return cells.get("Metric Value", cells.get("Average", ""))


def _store(result: Result, name: str, text: str, unit: str) -> None:
    scale, base = _base_unit(unit)
    name = DISPLAY_NAMES.get((name, base), name)
    value = number(text)
    if value is None and text.strip("(!) ").lower() not in ("", "n/a", "nan", "inf"):
        result.words[name] = text
    else:
        result.values[name] = None if value is None else value * scale


def _base_unit(unit: str) -> tuple[float, str]:
    """Factor to the base unit, and that unit: `Kbyte/block` → 1000, `byte/block`."""
    whole, slash, per = unit.partition("/")
    if time := TIME_UNIT.match(whole):
        return TIME_IN_NS[time[1]], "ns" + slash + per
    if scaled := SCALED_UNIT.match(whole):
        prefix = scaled[1][0].upper() + scaled[1][1:].lower()
        return SCALE[prefix], ("hz" if scaled[2].lower() == "hz" else "byte") + slash + per
    return 1.0, unit
