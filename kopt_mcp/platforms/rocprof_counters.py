"""AMD's counters: which to ask for in which pass, and the formulas that turn them into vendor-neutral metrics.

Formulas after the counter definitions of rocprofiler-sdk and the analysis files of rocprof-compute; not run on
hardware. A wave has 64 lanes and a compute unit four SIMDs on the gfx9 parts that these sets are for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kopt_mcp.devices.arch import SCHEDULERS, arch_of
from kopt_mcp.devices.occupancy import Occupancy, occupancy, waves
from kopt_mcp.platforms.reports import ratio
from kopt_mcp.platforms.rocprof_report import Kernel

Counted = Mapping[str, float | None]

WAVE_LANES = 64
DIE_UNITS = {"gfx90a": None, "gfx942": 38, "gfx950": 32}
"""By architecture the compute units of one accelerator die, where GRBM counters are summed over the dies."""

# One line a pass: the blocks count at most 8 (SQ), 4 (TCC), 4 (TCP), 2 (TA), 2 (GRBM) things at once.
QUICK = (
    ("FETCH_SIZE", "GRBM_GUI_ACTIVE"),
    ("WRITE_SIZE", "TCC_HIT_sum", "TCC_MISS_sum"),
    (
        "SQ_VALU_MFMA_BUSY_CYCLES",
        "SQ_WAVE_CYCLES",
        "SQ_WAIT_ANY",
        "SQ_WAIT_INST_LDS",
        "SQ_LDS_BANK_CONFLICT",
        "SQ_LDS_IDX_ACTIVE",
        "GRBM_GUI_ACTIVE",
    ),
    ("VALUBusy", "VALUUtilization"),
)
FULL = (
    ("OccupancyPercent",),
    ("TA_TOTAL_WAVEFRONTS_sum", "TCP_TOTAL_ACCESSES_sum"),
    ("MemUnitStalled",),
)


def passes(arch: str, *, full: bool = False) -> tuple[tuple[str, ...], ...]:
    """Counters by pass for `gfx90a`, `gfx942`, `gfx950`; none elsewhere (a trace still gives durations)."""
    if arch not in DIE_UNITS:
        return ()
    return QUICK + FULL if full else QUICK


def derive(counted: Counted, arch: str, compute_units: int | None) -> dict[str, float | None]:
    """Metrics of one launch from its mean counters; `hbm_bytes_per_launch` besides the neutral names."""
    value = counted.get
    cycles = _active_cycles(counted, arch, compute_units)
    conflict, indexed = value("SQ_LDS_BANK_CONFLICT"), value("SQ_LDS_IDX_ACTIVE")
    free = None if conflict is None or indexed is None else indexed - conflict
    hits, misses = value("TCC_HIT_sum"), value("TCC_MISS_sum")
    fetched, written = value("FETCH_SIZE"), value("WRITE_SIZE")
    busy, wavefronts = value("SQ_WAVE_CYCLES"), value("TA_TOTAL_WAVEFRONTS_sum")
    return {
        "hbm_bytes_per_launch": None if fetched is None or written is None else 1024 * (fetched + written),
        "tensor_pct": ratio(value("SQ_VALU_MFMA_BUSY_CYCLES"), _times(cycles, compute_units, SCHEDULERS), 100.0),
        "alu_pct": value("VALUBusy"),
        "occupancy_pct": value("OccupancyPercent") or _occupancy_pct(busy, cycles, arch, compute_units),
        "l2_hit_pct": None if hits is None or misses is None else ratio(hits, hits + misses, 100.0),
        "bank_conflict_pct": ratio(conflict, free, 100.0),
        "coalescing_pct": ratio(wavefronts, value("TCP_TOTAL_ACCESSES_sum"), 100.0 * WAVE_LANES / 4),
        "divergence_lanes": ratio(value("VALUUtilization"), 100.0, WAVE_LANES),
        "stall_waitcnt_pct": ratio(value("SQ_WAIT_ANY"), busy, 100.0),
        "stall_lds_pct": ratio(value("SQ_WAIT_INST_LDS"), busy, 100.0),
        "stall_memory_unit_pct": value("MemUnitStalled"),
    }


def resident_groups(kernel: Kernel, arch: str) -> Occupancy | None:
    """What of a kernel fits a compute unit; None where the architecture or the workgroup is not known."""
    threads, registers, lds = (
        int(kernel.shape.get(name) or 0) for name in ("block_threads", "registers", "shared_bytes")
    )
    if arch not in DIE_UNITS or not threads:
        return None
    return occupancy(arch_of(arch), threads=threads, registers=registers, shared_bytes=lds)


def launch_metrics(kernel: Kernel, arch: str, compute_units: int | None) -> dict[str, float | None]:
    """What the dispatch itself says: what it asked for, theoretical occupancy, waves of workgroups."""
    resident, grid = resident_groups(kernel, arch), kernel.shape.get("grid_blocks")
    filled = waves(grid, resident.blocks, compute_units) if resident and grid and compute_units else None
    return {
        **kernel.shape,
        "occupancy_theoretical_pct": resident.pct if resident else None,
        "waves": filled.count if filled else None,
    }


def _active_cycles(counted: Counted, arch: str, compute_units: int | None) -> float | None:
    """Cycles that the device was busy; GRBM_GUI_ACTIVE is the sum over its dies."""
    busy, die_units = counted.get("GRBM_GUI_ACTIVE"), DIE_UNITS.get(arch)
    if die_units is None or busy is None:
        return busy
    return None if compute_units is None else busy / max(1, round(compute_units / die_units))


def _occupancy_pct(busy: float | None, cycles: float | None, arch: str, compute_units: int | None) -> float | None:
    """SQ_WAVE_CYCLES counts in quarters: ×4 over the cycles of all wave slots."""
    slots = arch_of(arch).warps if arch in DIE_UNITS else None
    return ratio(busy, _times(cycles, compute_units, slots), 400.0)


def _times(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return math.prod(known) if len(known) == len(values) else None
