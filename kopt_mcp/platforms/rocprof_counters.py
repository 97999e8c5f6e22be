"""AMD's counters: which to ask for in which pass, and the formulas that turn them into vendor-neutral metrics.

Formulas after the counter definitions of rocprofiler-sdk and the analysis files of rocprof-compute; not run on
hardware. A wave has 64 lanes and a compute unit four SIMDs on the gfx9 parts that these sets are for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kopt_mcp.platforms.reports import ratio, total
from kopt_mcp.platforms.rocprof_report import Kernel

Counted = Mapping[str, float | None]

WAVE_LANES = 64
SIMDS = 4
KIB = 1024


@dataclass(frozen=True)
class Part:
    """What of an architecture the formulas need."""

    lds_bytes: int
    """LDS of one compute unit."""
    units_per_die: int | None
    """Compute units of one accelerator die, where GRBM counters are summed over the dies."""
    registers: int = 512
    """Vector registers (VGPR and AGPR together) of one SIMD lane."""
    waves_per_simd: int = 8


PARTS = {
    "gfx90a": Part(lds_bytes=64 * KIB, units_per_die=None),
    "gfx942": Part(lds_bytes=64 * KIB, units_per_die=38),
    "gfx950": Part(lds_bytes=160 * KIB, units_per_die=32),
}

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
    if arch not in PARTS:
        return ()
    return QUICK + FULL if full else QUICK


def derive(counted: Counted, arch: str, compute_units: int | None) -> dict[str, float | None]:
    """Metrics of one launch from its mean counters; `hbm_bytes_per_launch` besides the neutral names."""
    value = counted.get
    cycles = _active_cycles(counted, arch, compute_units)
    conflict, indexed = value("SQ_LDS_BANK_CONFLICT"), value("SQ_LDS_IDX_ACTIVE")
    free = None if conflict is None or indexed is None else indexed - conflict
    waves = value("SQ_WAVE_CYCLES")
    return {
        "hbm_bytes_per_launch": hbm_bytes(counted),
        "tensor_pct": _first(
            value("MfmaUtil"),
            ratio(value("SQ_VALU_MFMA_BUSY_CYCLES"), _times(cycles, compute_units, SIMDS), 100.0),
        ),
        "alu_pct": value("VALUBusy"),
        "occupancy_pct": _first(value("OccupancyPercent"), _occupancy(waves, cycles, arch, compute_units)),
        "l2_hit_pct": _first(value("L2CacheHit"), _hit_pct(value("TCC_HIT_sum"), value("TCC_MISS_sum"))),
        "bank_conflict_pct": _first(ratio(conflict, free, 100.0), value("LDSBankConflict")),
        "coalescing_pct": ratio(
            value("TA_TOTAL_WAVEFRONTS_sum"), value("TCP_TOTAL_ACCESSES_sum"), 100.0 * WAVE_LANES / 4
        ),
        "divergence_lanes": ratio(value("VALUUtilization"), 100.0, WAVE_LANES),
        "stall_waitcnt_pct": ratio(value("SQ_WAIT_ANY"), waves, 100.0),
        "stall_lds_pct": ratio(value("SQ_WAIT_INST_LDS"), waves, 100.0),
        "stall_memory_unit_pct": value("MemUnitStalled"),
    }


def hbm_bytes(counted: Counted) -> float | None:
    """Bytes read and written in HBM by one launch; None unless both directions were counted.

    `FETCH_SIZE` and `WRITE_SIZE` are in KiB. Without them: requests to the memory controller of 32, 64 and, as
    "bubbles", 128 bytes.
    """
    read = _first(ratio(counted.get("FETCH_SIZE"), 1.0, 1024.0), _requested(counted))
    written = _first(ratio(counted.get("WRITE_SIZE"), 1.0, 1024.0), _written(counted))
    return None if read is None or written is None else read + written


def launch_metrics(kernel: Kernel, arch: str, compute_units: int | None) -> dict[str, float | None]:
    """What the dispatch itself says: grid, registers, LDS, scratch, theoretical occupancy, waves of workgroups."""
    limits = _wave_limits(kernel, arch)
    waves = min(limits.values()) if limits else None
    per_group = _waves_per_group(kernel)
    resident = _times(ratio(waves, per_group), compute_units)
    return {
        "grid_blocks": kernel.grid_workgroups,
        "block_threads": kernel.workgroup,
        "registers": total(kernel.vgprs, kernel.agprs),
        "shared_bytes": kernel.lds_bytes,
        "spill_bytes": kernel.scratch_bytes,
        "occupancy_theoretical_pct": ratio(waves, limits.get("warps"), 100.0),
        "waves": ratio(kernel.grid_workgroups, resident),
    }


def launch_facts(kernel: Kernel, arch: str) -> dict[str, str]:
    """`occupancy_limiter`: `warps` (nothing is short), `registers` or `shared_memory` (LDS)."""
    limits = _wave_limits(kernel, arch)
    return {"occupancy_limiter": min(limits, key=limits.__getitem__)} if limits else {}


def _wave_limits(kernel: Kernel, arch: str) -> dict[str, float]:
    """Waves of a compute unit by each limit; the order settles ties."""
    part = PARTS.get(arch)
    per_group = _waves_per_group(kernel)
    if part is None or per_group is None:
        return {}
    limits: dict[str, float] = {"warps": part.waves_per_simd * SIMDS}
    if registers := total(kernel.vgprs, kernel.agprs):
        allocated = 8 * math.ceil(registers / 8)
        limits["registers"] = SIMDS * min(part.waves_per_simd, part.registers // allocated)
    if kernel.lds_bytes:
        limits["shared_memory"] = per_group * (part.lds_bytes // kernel.lds_bytes)
    return {name: min(limit, limits["warps"]) for name, limit in limits.items()}


def _waves_per_group(kernel: Kernel) -> int | None:
    return math.ceil(kernel.workgroup / WAVE_LANES) if kernel.workgroup else None


def _active_cycles(counted: Counted, arch: str, compute_units: int | None) -> float | None:
    """Cycles that the device was busy; GRBM_GUI_ACTIVE is the sum over its dies."""
    busy = counted.get("GRBM_GUI_ACTIVE")
    part = PARTS.get(arch)
    if part is None or part.units_per_die is None or busy is None:
        return busy
    return None if compute_units is None else busy / max(1, round(compute_units / part.units_per_die))


def _occupancy(waves: float | None, cycles: float | None, arch: str, compute_units: int | None) -> float | None:
    """SQ_WAVE_CYCLES counts in quarters: ×4 over the cycles of all wave slots."""
    slots = PARTS[arch].waves_per_simd * SIMDS if arch in PARTS else None
    return ratio(waves, _times(cycles, compute_units, slots), 400.0)


def _hit_pct(hits: float | None, misses: float | None) -> float | None:
    return None if hits is None or misses is None else ratio(hits, hits + misses, 100.0)


def _requested(counted: Counted) -> float | None:
    names = ("TCC_BUBBLE_sum", "TCC_EA0_RDREQ_sum", "TCC_EA0_RDREQ_32B_sum")
    bubble, requests, small = (counted.get(name) for name in names)
    if bubble is None or requests is None or small is None:
        return None
    return bubble * 128 + (requests - bubble - small) * 64 + small * 32


def _written(counted: Counted) -> float | None:
    requests, whole = (counted.get(name) for name in ("TCC_EA0_WRREQ_sum", "TCC_EA0_WRREQ_64B_sum"))
    return None if requests is None or whole is None else (requests - whole) * 32 + whole * 64


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _times(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return math.prod(known) if len(known) == len(values) else None
