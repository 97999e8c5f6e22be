"""Everything a rule may look at: the profile, what the compiler said where counters did not, device, problem, roof."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kopt_mcp.diagnosis.roofline import Roof, roof_of, short_dtype
from kopt_mcp.diagnosis.thresholds import HIGH, MARGIN
from kopt_mcp.models import Device, Profile, StaticKernel

MATH_PIPES = ("tensor_pct", "fma_pct", "alu_pct", "xu_pct", "fp64_pct")
SPILL_WORD_BYTES = 4


@dataclass(frozen=True)
class Signals:
    """One workload of one candidate on one device. `profile` holds what the compiler said, see `with_compiled`."""

    profile: Profile
    device: Device
    static: Sequence[StaticKernel]
    bytes_needed: float
    flops: float
    dtype: str

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Only what was measured or compiled."""
        return {name: value for name, value in self.profile.metrics.items() if value is not None}

    @property
    def facts(self) -> Mapping[str, str]:
        return self.profile.facts

    @cached_property
    def counters(self) -> bool:
        """Whether the profile holds hardware counters."""
        seen = ("dram_pct", "dram_bytes", "l1_pct", "sm_pct", *MATH_PIPES)
        return self.profile.rung in ("ncu", "rocprofv3") and any(name in self.metrics for name in seen)

    @cached_property
    def device_us(self) -> float | None:
        """Device time of one call, all kernels together."""
        total = self._total("duration_us")
        return self.metrics.get("duration_us") if total is None else total

    @cached_property
    def latency_us(self) -> float | None:
        """What the roof is compared with: the benchmark's time where it is given, else the profiler's."""
        return self.metrics.get("latency_us") or self.device_us

    @cached_property
    def roof(self) -> Roof:
        return roof_of(
            self.device,
            bytes_needed=self.bytes_needed,
            flops=self.flops,
            dtype=self.dtype,
            tensor=self.metrics.get("tensor_pct", 0.0) > 0 or "mma" in self.facts,
            duration_us=self.latency_us,
        )

    @cached_property
    def roof_pct(self) -> float | None:
        """How near the call is to its roof."""
        return self.roof.pct(self.roof.side, self.latency_us)

    @cached_property
    def redundancy(self) -> float | None:
        """Bytes moved / bytes needed, over all kernels."""
        moved = self._total("dram_bytes")
        return moved / self.bytes_needed if moved is not None and self.bytes_needed else None

    def _total(self, metric: str) -> float | None:
        """Over all kernels; None unless every one has it."""
        values = [kernel.metrics.get(metric) for kernel in self.profile.kernels]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    @cached_property
    def dram_measured_pct(self) -> float | None:
        """The main kernel's memory traffic in percent of the bandwidth measured on the device."""
        moved, time, peak = self.metrics.get("dram_bytes"), self.metrics.get("duration_us"), self.device.measured_gbps
        return 100 * moved / time / (peak.value * 1e3) if moved is not None and time and peak and peak.value else None

    @cached_property
    def sector_use(self) -> tuple[float, str] | None:
        """Bytes used of the 32 of a sector by the worse kind of access, and which: `load` or `store`."""
        names = {kind: f"bytes_per_sector_{kind}" for kind in ("load", "store")}
        used = [(self.metrics[name], kind) for kind, name in names.items() if name in self.metrics]
        return min(used, default=None)

    @cached_property
    def memory(self) -> tuple[str, float] | None:
        """The busiest level of the memory system, by name and percent of its peak."""
        levels: tuple[str, ...] = ("dram_pct", "l1_pct")
        found = {name: self.metrics[name] for name in levels if name in self.metrics}
        if self.dram_measured_pct is not None and "dram_pct" not in found:
            found["dram_measured_pct"] = self.dram_measured_pct
        # All DRAM traffic passes the L2, whose figure runs a little above: it speaks for itself only when well above.
        dram = found.get("dram_pct", found.get("dram_measured_pct"))
        l2 = self.metrics.get("l2_pct")
        if l2 is not None and (dram is None or l2 - dram >= MARGIN):
            found["l2_pct"] = l2
        return max(found.items(), key=lambda item: item[1]) if found else None

    @cached_property
    def compute(self) -> tuple[str, float] | None:
        """The busiest arithmetic pipe; issue slots only when nearly full.

        Not `sm_pct`: that is the busiest unit of any kind, and reads 64 % on a kernel that merely streams memory.
        """
        pipes = MATH_PIPES + (("issue_pct",) if self.metrics.get("issue_pct", 0.0) >= HIGH else ())
        found = {name: self.metrics[name] for name in pipes if name in self.metrics}
        return max(found.items(), key=lambda item: item[1]) if found else None

    @cached_property
    def busiest_pct(self) -> float | None:
        """Of all units; what is left of it bounds what better scheduling can gain."""
        return max((unit[1] for unit in (self.memory, self.compute) if unit), default=None)

    @cached_property
    def wave_lanes(self) -> int:
        """Lanes of a warp; the gfx9 parts have waves of 64."""
        return 64 if self.device.arch.startswith("gfx9") else 32

    @cached_property
    def arch_number(self) -> int:
        """90 for `sm_90`; 0 where the architecture has no such number."""
        found = re.match(r"sm_(\d+)", self.device.arch)
        return int(found[1]) if found else 0

    @cached_property
    def has_matrix_units(self) -> bool:
        """Whether the device multiplies matrices of this dtype in hardware."""
        dtype = short_dtype(self.dtype)
        if self.device.platform == "amd":
            return self.device.arch.startswith(("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")) and (
                dtype in ("fp16", "bf16", "int8", "fp8", "fp32")
            )
        first = {"fp16": 70, "int8": 75, "bf16": 80, "fp32": 80, "tf32": 80, "fp8": 89}.get(dtype)
        return self.device.platform == "nvidia" and first is not None and self.arch_number >= first


def with_compiled(profile: Profile, kernels: Sequence[StaticKernel]) -> Profile:
    """The profile with the compiler's word on its main kernel where nothing was measured: counters win."""
    if profile.kernels:
        kernel = {kernel.name: kernel for kernel in kernels}.get(profile.kernels[0].name)
    else:
        kernel = kernels[0] if kernels else None
    if kernel is None:
        return profile
    spills = None if kernel.spills is None else kernel.spills * SPILL_WORD_BYTES
    numbers = {
        "registers": kernel.registers,
        "spill_bytes": spills,
        "shared_bytes": kernel.shared_bytes,
        "load_bytes": kernel.load_bytes,
        "store_bytes": kernel.store_bytes,
        "occupancy_theoretical_pct": kernel.occupancy_pct,
        "waves": kernel.waves,
        "grid_blocks": math.prod(kernel.grid) if kernel.grid else None,
        "block_threads": kernel.block_threads,
    }
    words = {"occupancy_limiter": kernel.limiter, "mma": kernel.mma, "async_copy": kernel.async_copy}
    compiled = {name: float(value) for name, value in numbers.items() if value is not None}
    measured = {name: value for name, value in profile.metrics.items() if value is not None}
    update = {
        "metrics": {**profile.metrics, **compiled, **measured},
        "facts": {**{name: word for name, word in words.items() if word}, **profile.facts},
    }
    return profile.model_copy(update=update)
