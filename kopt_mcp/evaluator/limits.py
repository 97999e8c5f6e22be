"""What no kernel on a device can beat, from ceilings measured on it."""

from __future__ import annotations

from dataclasses import dataclass

from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.records import Ceilings
from kopt_mcp.problem import Case

_FLOOR_SHARE = {"cpu": 0.5, "cuda": 0.9}
"""Share of the time at the measured ceilings below which a claim is not believed. A CPU's caches hide more."""


@dataclass(frozen=True)
class PhysicalLimits:
    """The measured ceilings of a device, and the size of the cache that can hide some of the traffic."""

    ceilings: Ceilings
    cache_bytes: int
    kind: str

    def require_possible(self, case: Case, output_bytes: int, us: float) -> None:
        """Refuse a time below what the bytes and operations of the problem need.

        Outputs may still be in the cache when the call ends, so as much of them as fits there is not counted.

        Raises:
            Fault: `CHEATED`.
        """
        moved = max(0.0, case.bytes - min(output_bytes, self.cache_bytes))
        if self.kind == "cpu":
            moved = max(0.0, moved - self.cache_bytes)
        fastest = max(self.ceilings.copy_gbps, self.ceilings.triad_gbps) * 1e3
        needed = [moved / fastest]
        key = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(case.workload.dtype, "")
        rates = [self.ceilings.tflops.get(k, 0.0) for k in (key, "tf32" if key == "fp32" else key)]
        if max(rates) > 0:
            needed.append(case.flops / (max(rates) * 1e6))
        floor = _FLOOR_SHARE[self.kind] * max(needed)
        if us < floor:
            text = (
                f"{us:.2f} us where this device needs at least {floor:.2f} us for the bytes and operations of the "
                "problem; the work cannot have been done in the time measured"
            )
            raise Fault("CHEATED", f"{case.workload.name}: {text}")
