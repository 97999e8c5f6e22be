"""Reads Nsight Compute's CSV: a launch a line (the raw page), or a metric a line (what `--csv` alone prints).

Columns are found by header name only, since they differ between versions.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field

from kopt_mcp.platforms.reports import number

TIME_IN_NS = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3}
TIME_UNIT = re.compile(r"^([num]?)s(?:econd)?s?$")
SCALED_UNIT = re.compile(r"^([KMGT]i?)(byte|B|hz)$", re.IGNORECASE)


@dataclass
class Result:
    """One profiled launch as ncu printed it, in base units (ns, byte, hz, percent)."""

    kernel: str
    compute_capability: str = ""
    values: dict[str, float | None] = field(default_factory=dict)


def parse(report: str) -> list[Result]:
    """The launches that a report holds a metric of; the program's own output between its lines is passed over."""
    results: dict[str, Result] = {}
    header: list[str] = []
    units: dict[str, str] = {}
    for row in csv.reader(line for line in report.splitlines() if line.startswith('"')):
        cells = dict(zip(header, row, strict=False))
        if "Kernel Name" in row:
            header, units = row, {}
        elif not cells.get("ID", "").isdigit():
            units = cells
        else:
            result = results.setdefault(cells["ID"], Result(cells["Kernel Name"], cells.get("CC", "")))
            if metric := cells.get("Metric Name"):
                cells, units = {metric: cells["Metric Value"]}, {metric: cells["Metric Unit"]}
            for name, text in cells.items():
                if "__" in name:
                    value, scale = number(text), _scale(units.get(name, ""))
                    result.values[name] = None if value is None else value * scale
    return [result for result in results.values() if result.values]


def _scale(unit: str) -> float:
    """Factor to the base unit: 1000 for `Kbyte/block`."""
    whole = unit.partition("/")[0]
    if time := TIME_UNIT.match(whole):
        return TIME_IN_NS[time[1]]
    if scaled := SCALED_UNIT.match(whole):
        return SCALE[scaled[1][0].upper() + scaled[1][1:].lower()]
    return 1.0
