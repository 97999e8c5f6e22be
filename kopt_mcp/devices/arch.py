"""What one compute unit of each architecture holds: the one table behind occupancy and the launch limits.

"Unit" is what a block lives on: NVIDIA's streaming multiprocessor (SM), AMD's compute unit (CDNA) or workgroup
processor (RDNA, two compute units). Sources: NVIDIA, CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability", and `cuda_occupancy.h` of CUDA 13.0; AMD, the CDNA 2/3/4 and RDNA 3/4 ISA guides and LLVM's AMDGPU
back end (`AMDGPUBaseInfo.cpp`: register granules, waves per SIMD, barriers per unit).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kopt_mcp.errors import InputRefused

KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Arch:
    """Limits of one unit, and one well-known part to count waves on."""

    target: str
    part: str
    units: int
    """Units of `part`."""
    unit: str
    """What the vendor calls the unit: `SM`, `CU`, `WGP`."""
    warp_size: int
    warps: int
    """Resident warps (waves) of a unit."""
    blocks: int
    """Resident blocks of a unit; on AMD the number of hardware barriers, which blocks of one wave do not need."""
    lane_registers: int
    """32-bit registers of one lane in each of the unit's four schedulers (SIMDs)."""
    register_granule: int
    """Registers per thread are allocated in steps of this many."""
    shared_bytes: int
    """Shared memory (LDS) of a unit."""
    shared_block_bytes: int
    """The most one block may ask for (on NVIDIA by opting in, which Triton does)."""
    shared_granule: int
    shared_reserved_bytes: int = 0
    """What the driver takes of every block."""

    @property
    def vendor(self) -> str:
        """`nvidia` or `amd`."""
        return "nvidia" if self.target.startswith("sm_") else "amd"

    @property
    def compute_capability(self) -> int:
        """90 for `sm_90`. NVIDIA only."""
        return int(self.target.removeprefix("sm_"))

    @property
    def torch_capability(self) -> tuple[int, int]:
        """(9, 0) for `sm_90`, (9, 4) for `gfx942`, as `torch.cuda.get_device_capability` answers."""
        if self.vendor == "nvidia":
            return divmod(self.compute_capability, 10)
        return int(self.target[3:-2]), int(self.target[-2])

    @property
    def registers(self) -> int:
        """32-bit registers of a unit."""
        return SCHEDULERS * self.lane_registers * self.warp_size


SCHEDULERS = 4
"""Sub-partitions of an SM, SIMDs of a CU or a WGP."""

BLOCK_THREADS = 1024
"""Most threads of a block on every row of the table."""


def _sm(capability: int, warps: int, blocks: int, shared_kib: int, units: int, part: str) -> Arch:
    ampere = capability >= 80
    return Arch(
        target=f"sm_{capability}",
        part=part,
        units=units,
        unit="SM",
        warp_size=32,
        warps=warps,
        blocks=blocks,
        lane_registers=512,
        register_granule=8,
        shared_bytes=shared_kib * KIB,
        shared_block_bytes=(shared_kib - ampere) * KIB,
        shared_granule=128 if ampere else 256,
        shared_reserved_bytes=KIB if ampere else 0,
    )


_cu = partial(Arch, unit="CU", warp_size=64, warps=32, blocks=16, lane_registers=512, register_granule=8)
_cdna = partial(_cu, shared_bytes=64 * KIB, shared_block_bytes=64 * KIB, shared_granule=512)
_cdna4 = partial(_cu, shared_bytes=160 * KIB, shared_block_bytes=160 * KIB, shared_granule=1280)
_wgp = partial(Arch, unit="WGP", warp_size=32, warps=64, blocks=32, lane_registers=1536, register_granule=24)
_rdna = partial(_wgp, shared_bytes=128 * KIB, shared_block_bytes=64 * KIB, shared_granule=1024)

ARCHITECTURES = {
    arch.target: arch
    for arch in (
        _sm(70, 64, 32, 96, 80, "V100"),
        _sm(75, 32, 16, 64, 40, "T4"),
        _sm(80, 64, 32, 164, 108, "A100"),
        _sm(86, 48, 16, 100, 84, "A40"),
        _sm(87, 48, 16, 164, 16, "Jetson AGX Orin"),
        _sm(89, 48, 24, 100, 142, "L40S"),
        _sm(90, 64, 32, 228, 132, "H100 SXM, H200"),
        _sm(100, 64, 32, 228, 148, "B200"),
        _sm(103, 64, 32, 228, 148, "B300"),
        _sm(120, 48, 24, 100, 170, "RTX 5090"),
        _sm(121, 48, 24, 100, 48, "GB10"),
        _cdna(target="gfx90a", units=104, part="MI210"),
        _cdna(target="gfx942", units=304, part="MI300X"),
        _cdna4(target="gfx950", units=256, part="MI355X"),
        _rdna(target="gfx1100", units=48, part="RX 7900 XTX"),
        _rdna(target="gfx1101", units=30, part="RX 7800 XT"),
        _rdna(target="gfx1151", units=20, part="Radeon 8060S"),
        _rdna(target="gfx1200", units=16, part="RX 9060 XT"),
        _rdna(target="gfx1201", units=32, part="RX 9070 XT"),
    )
}


def arch_of(target: str) -> Arch:
    """The row of a target such as `sm_90`, `sm_90a` or `gfx942:sramecc+:xnack-`.

    Raises:
        InputRefused: the target is not in the table.
    """
    name = target.split(":")[0]
    if name.startswith("sm_"):
        name = name.rstrip("af")
    if name not in ARCHITECTURES:
        raise InputRefused(f"target {target!r} is not known. Use one of: {', '.join(ARCHITECTURES)}.")
    return ARCHITECTURES[name]
