"""How many blocks of a kernel fit on one unit, what limits them, and how the grid fills the device. Pure.

NVIDIA: equal to `cuda_occupancy.h` of CUDA 13.0 with shared memory carved out as large as needed. AMD: LLVM's waves per
SIMD by vector registers, times four SIMDs, with LDS and barriers on top; scalar registers are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kopt_mcp.devices.arch import BLOCK_THREADS, SCHEDULERS, Arch


@dataclass(frozen=True)
class Occupancy:
    """Theoretical occupancy of one unit."""

    blocks: int
    warps: int
    pct: float
    """Resident warps in percent of the unit's slots."""
    limiter: str
    """The smallest of `limits`; `warps` wins a tie, since then nothing is short."""
    limits: dict[str, int]
    """Blocks that fit by `warps`, `blocks`, `registers`, `shared_memory` alone, as ncu's Block Limit lines."""


@dataclass(frozen=True)
class Waves:
    """How often the grid fills the device."""

    count: float
    """Blocks / blocks that run at once; below 1 the device is not full."""
    idle_pct: float
    """Share of the block slots that stay empty over all waves, the last one being partly full."""


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def occupancy(arch: Arch, *, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Resident blocks of one unit.

    Args:
        arch: limits of the unit.
        threads: threads of one block.
        registers: 32-bit vector registers of one thread; on CDNA with the accumulation registers, as allocated.
        shared_bytes: static plus dynamic shared memory (LDS) of one block, without the driver's share.
    """
    warps = -(-threads // arch.warp_size)
    # Vector registers per lane of a scheduler decide how many warps it holds.
    held = arch.lane_registers // _round_up(registers, arch.register_granule) if registers else arch.warps
    taken = _round_up(shared_bytes + arch.shared_reserved_bytes, arch.shared_granule)
    fitting = arch.shared_bytes // taken if taken else arch.warps
    limits = {
        "warps": arch.warps // warps if threads <= BLOCK_THREADS else 0,
        # On AMD a block of one wave needs no barrier.
        "blocks": arch.warps if arch.vendor == "amd" and warps == 1 else arch.blocks,
        "registers": min(arch.warps, SCHEDULERS * held) // warps,
        "shared_memory": fitting if shared_bytes <= arch.shared_block_bytes else 0,
    }
    limiter = min(limits, key=lambda name: limits[name])
    resident = limits[limiter] * warps
    return Occupancy(limits[limiter], resident, 100 * resident / arch.warps, limiter, limits)


def waves(grid_blocks: float, resident_blocks: int, units: int) -> Waves | None:
    """How often `grid_blocks` fill `units` units that hold `resident_blocks` each; None when a block does not fit."""
    if resident_blocks < 1 or units < 1:
        return None
    count = grid_blocks / (resident_blocks * units)
    return Waves(count, 100 * (1 - count / math.ceil(count)) if count else 100.0)
