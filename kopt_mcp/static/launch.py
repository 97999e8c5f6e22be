"""From what the compiler said about one launch to a `StaticKernel`: occupancy, waves, what is wrong with it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from kopt_mcp.devices.arch import BLOCK_THREADS, Arch
from kopt_mcp.devices.occupancy import Waves, occupancy, waves
from kopt_mcp.models import StaticKernel
from kopt_mcp.static.assembly import Instructions

TENSOR_COLUMNS = 512
"""Tensor-memory columns of a Blackwell SM (PTX ISA, "Tensor Memory")."""
GRID_YZ = 65535
"""Largest y and z of an NVIDIA grid (CUDA C++ Programming Guide, technical specifications)."""
TAIL_PCT = 20
"""A tail is named when it wastes this share of the device, the threshold of Nsight Compute's tail rule."""
NARROW_BYTES = 4
"""A global load of less than a word per thread leaves most of each request unused."""


NOTHING_READ = Instructions(None, None, None, None)


@dataclass(frozen=True)
class Launch:
    """One launch, or one kernel that nothing launched (an empty `grid`)."""

    name: str
    grid: tuple[int, ...] = ()
    """Blocks in x, y, z."""
    block_threads: int | None = None
    registers: int | None = None
    """Per thread; on CDNA with the accumulation registers."""
    spills: int | None = None
    """4-byte words per thread."""
    shared_bytes: int | None = None
    instructions: Instructions = NOTHING_READ
    tensor_columns: int = 0
    remark: str = ""
    """What the reader must know about where the launch comes from."""
    fault: str = ""
    """What keeps the compiler from an answer."""
    config: dict[str, str] = field(default_factory=dict)
    """The autotuning config that was compiled."""


def endless_compile(name: str, block_threads: int | None, timeout_s: float) -> Launch:
    """The finding that a compile did not end in `timeout_s` seconds."""
    fault = f"compile timed out after {timeout_s:g} s: the tile is too large for this target"
    return Launch(name=name, block_threads=block_threads, fault=fault)


def static_kernel(launch: Launch, arch: Arch, *, target: str, units: int | None = None) -> StaticKernel:
    """The record of one launch.

    Args:
        launch: what the compiler said.
        arch: limits of the target.
        target: the target as it was asked for.
        units: SMs, CUs or WGPs to count waves on; None for those of the table's well-known part.
    """
    resident, filled, shared = None, None, launch.shared_bytes or 0
    if launch.registers is not None and launch.block_threads:
        resident = occupancy(arch, threads=launch.block_threads, registers=launch.registers, shared_bytes=shared)
    if resident and launch.grid:
        filled = waves(math.prod(launch.grid), resident.blocks, units or arch.units)
    return StaticKernel(
        name=launch.name,
        target=target,
        registers=launch.registers,
        spills=launch.spills,
        shared_bytes=launch.shared_bytes,
        load_bytes=launch.instructions.load_bytes,
        store_bytes=launch.instructions.store_bytes,
        mma=launch.instructions.mma,
        async_copy=launch.instructions.async_copy,
        occupancy_pct=round(resident.pct, 2) if resident else None,
        limiter=resident.limiter if resident else None,
        grid=list(launch.grid),
        block_threads=launch.block_threads,
        waves=round(filled.count, 2) if filled else None,
        problems=[
            *(f"cannot launch: {text}" for text in _impossible(launch, arch)),
            *_slow(launch, arch, filled, units),
            *filter(None, [launch.fault]),
        ],
        config=launch.config,
        notes=[launch.remark] if launch.remark else [],
    )


def _impossible(launch: Launch, arch: Arch) -> Iterator[str]:
    threads, registers = launch.block_threads or 0, launch.registers or 0
    if (launch.shared_bytes or 0) > arch.shared_block_bytes:
        memory = "shared memory" if arch.vendor == "nvidia" else "LDS"
        yield f"{launch.shared_bytes} B of {memory} per block, {arch.target} allows {arch.shared_block_bytes} B"
    if threads > BLOCK_THREADS:
        yield f"{threads} threads per block, {arch.target} allows {BLOCK_THREADS}"
    elif threads and occupancy(arch, threads=threads, registers=registers, shared_bytes=0).blocks == 0:
        yield f"{registers} registers x {threads} threads exceed the register file of one {arch.unit}"
    if launch.tensor_columns > TENSOR_COLUMNS:
        yield f"{launch.tensor_columns} columns of tensor memory, {arch.target} has {TENSOR_COLUMNS}"
    if 0 in launch.grid:
        yield f"the grid {launch.grid} is empty"
    if arch.vendor == "nvidia" and max(launch.grid[1:], default=0) > GRID_YZ:
        yield f"the grid {launch.grid} exceeds {GRID_YZ} in y or z"


def _slow(launch: Launch, arch: Arch, filled: Waves | None, units: int | None) -> Iterator[str]:
    if launch.spills:
        yield f"{launch.spills} words per thread spill to memory: the tile is too large for its warps"
    load = launch.instructions.load_bytes
    if load is not None and load < NARROW_BYTES:
        yield f"the widest global load is {load} B per thread: not vectorised"
    if filled is None:
        return
    blocks, count = math.prod(launch.grid), units or arch.units
    device = f"{count} {arch.unit}s" if units else f"{count} {arch.unit}s ({arch.part})"
    if 0 < blocks < count:
        yield f"small grid: {blocks} blocks on {device}, {count - blocks} stay idle"
    elif filled.count > 1 and filled.idle_pct >= TAIL_PCT:
        yield f"tail: {filled.count:.2f} waves on {device}, {filled.idle_pct:.0f} % of the block slots stay idle"
