"""The roofline of a problem on a device: the time that its bytes and its operations need at the least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kopt_mcp.models import Device, Peak

Side = Literal["memory", "compute"]

DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "int8": "int8"}


@dataclass(frozen=True)
class Limit:
    """The least time that one resource allows."""

    us: float
    what: str
    """`measured copy rate`, `nominal bf16 rate`."""
    measured: bool


@dataclass(frozen=True)
class Roof:
    """What memory and arithmetic allow; a side is None when the device's rate is not known."""

    memory: Limit | None
    compute: Limit | None

    @property
    def side(self) -> Side | None:
        """The resource that takes longer."""
        if self.memory is None or self.compute is None:
            return "memory" if self.memory else "compute" if self.compute else None
        return "memory" if self.memory.us >= self.compute.us else "compute"

    @property
    def limit(self) -> Limit | None:
        """The higher of the two."""
        return self.memory if self.side == "memory" else self.compute

    def pct(self, side: Side | None, duration_us: float | None) -> float | None:
        """How near `duration_us` is to that side of the roof; 100 is on it."""
        limit = self.memory if side == "memory" else self.compute if side == "compute" else None
        return 100 * limit.us / duration_us if limit and duration_us else None


def roof_of(
    device: Device,
    *,
    bytes_needed: float,
    flops: float,
    dtype: str,
    tensor: bool,
    duration_us: float | None,
) -> Roof:
    """The roof from measured rates, else nominal ones.

    `tensor`: matrix units were seen at work, so that fp32 may run as TF32; a duration that fp32 units cannot reach
    says the same.
    """
    name = short_dtype(dtype)
    rate, tf32 = (_rate(device.measured_tflops.get(one), device.tflops.get(one)) for one in (name, "tf32"))
    if name == "fp32" and tf32:
        beyond = rate is not None and duration_us is not None and flops > duration_us * 1e6 * rate[0]
        name, rate = ("tf32", tf32) if tensor or beyond else (name, rate)
    memory = compute = None
    if found := _rate(device.measured_gbps, device.bandwidth_gbps):
        gbps, measured = found
        stream = "triad" if device.platform == "cpu" else "copy"
        memory = Limit(
            bytes_needed / (gbps * 1e3), f"measured {stream} rate" if measured else "nominal bandwidth", measured
        )
    if rate:
        tflops, measured = rate
        compute = Limit(flops / (tflops * 1e6), f"{'measured' if measured else 'nominal'} {name} rate", measured)
    return Roof(memory, compute)


def short_dtype(dtype: str) -> str:
    """`torch.bfloat16` → `bf16`, `float8_e4m3fn` → `fp8`; short names stay."""
    name = dtype.removeprefix("torch.").lower()
    return "fp8" if name.startswith(("float8", "fp8")) else DTYPES.get(name, name)


def _rate(measured: Peak | None, nominal: Peak | None) -> tuple[float, bool] | None:
    """The measured rate, else the nominal one, and which it is."""
    known = ((peak.value, peak is measured) for peak in (measured, nominal) if peak and peak.value > 0)
    return next(known, None)
