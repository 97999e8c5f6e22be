"""Reads the CSV files of rocprofv3 and of the legacy rocprof, by header name without regard to case."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kopt_mcp.platforms.reports import DECORATION, number, ratio, total

Row = Mapping[str, str]

BLOCKS = {
    "SQ": ("SQ", "VALU", "Occupancy"),
    "TCC": ("TCC", "FETCH_SIZE", "WRITE_SIZE"),
    "TCP": ("TCP", "TA", "MemUnit"),
}
"""Which hardware block counts what, by the beginnings of the counters' names."""


@dataclass(frozen=True)
class Kernel:
    """The dispatches of one kernel."""

    name: str
    calls: int
    total_ns: float
    shape: Mapping[str, float | None] = field(default_factory=dict)
    """What the longest dispatch asked for, under a profile's names."""


def read_trace(report: str) -> list[Kernel]:
    """The kernels of a `*_kernel_trace.csv`, one entry a name, in order of first dispatch."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in _rows(report):
        if "start_timestamp" in row and "kernel_name" in row and "counter_name" not in row:
            groups[_name(row["kernel_name"])].append(row)
    return [_traced(name, rows) for name, rows in groups.items()]


def read_stats(report: str) -> list[Kernel]:
    """The kernels of a stats file of either tool (`Name, Calls, TotalDurationNs, ...`)."""
    rows = [row for row in _rows(report) if "totaldurationns" in row]
    return [
        Kernel(_name(row["name"]), int(number(row["calls"]) or 0), number(row["totaldurationns"]) or 0.0)
        for row in rows
        if number(row["calls"])
    ]


def read_counters(reports: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Kernel → counter → mean over its dispatches, from `*_counter_collection.csv` files of any number of passes.

    The layout is long: one row a dispatch and counter. A hardware block whose every counter reads 0 over a whole
    file was not counted (seen on consumer cards and virtual functions): its counters are None.
    """
    counted: dict[str, dict[str, float | None]] = defaultdict(dict)
    for report in reports:
        rows = [row for row in _rows(report) if "counter_name" in row]
        alive = {_block(row["counter_name"]) for row in rows if number(row["counter_value"])}
        values: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for row in rows:
            # Counters with several instances may come as several rows of one dispatch: they add up.
            dispatches = values[_name(row["kernel_name"]), row["counter_name"]]
            dispatches[row["dispatch_id"]] += number(row["counter_value"]) or 0.0
        for (kernel, counter), dispatches in values.items():
            mean = sum(dispatches.values()) / len(dispatches)
            counted[kernel][counter] = mean if _block(counter) in alive else None
    return dict(counted)


def _rows(report: str) -> Iterator[Row]:
    for row in csv.DictReader(report.splitlines()):
        yield {key.strip().lower(): value or "" for key, value in row.items() if isinstance(key, str)}


def _name(text: str) -> str:
    return DECORATION.sub("", text).strip()


def _block(counter: str) -> str:
    return next((block for block, beginnings in BLOCKS.items() if counter.startswith(beginnings)), counter)


def _traced(name: str, rows: Sequence[Row]) -> Kernel:
    longest = max(rows, key=_duration)
    threads = _volume(longest, "workgroup_size")
    registers = (number(longest.get(f"{kind}_count", "")) for kind in ("vgpr", "accum_vgpr"))
    shape = {
        # The grid is in work-items, not in workgroups.
        "grid_blocks": ratio(_volume(longest, "grid_size"), threads),
        "block_threads": threads,
        "registers": total(*registers),
        "shared_bytes": number(longest.get("lds_block_size", "")),
        "spill_bytes": number(longest.get("scratch_size", "")),
    }
    return Kernel(name, len(rows), sum(map(_duration, rows)), shape)


def _duration(row: Row) -> float:
    return (number(row["end_timestamp"]) or 0.0) - (number(row["start_timestamp"]) or 0.0)


def _volume(row: Row, name: str) -> float | None:
    """Product of the three extents, or the flat column."""
    if name in row:
        return number(row[name])
    return math.prod(number(row.get(f"{name}_{axis}", "")) or 0.0 for axis in "xyz") or None
