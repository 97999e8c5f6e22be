"""What the roofline plot shows: what each timed workload reached, and what memory and arithmetic allow. Pure.

Arithmetic intensity is the problem's operations over the bytes that any implementation must move, so that it belongs to
the workload and not to the kernel: a better kernel moves a point up, never sideways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kopt_mcp.diagnosis.roofline import short_dtype
from kopt_mcp.models import Device
from kopt_mcp.phases import Experiment
from kopt_mcp.report.reading import best


@dataclass(frozen=True)
class Point:
    """One timed workload, before and after."""

    workload: str
    dtype: str
    intensity: float
    """Operations per byte."""
    before: float
    """TFLOP/s of the baseline."""
    after: float
    """TFLOP/s of the best version."""
    roof: float | None
    """TFLOP/s that the measured rates allow at this intensity; None where they are not known."""

    @property
    def share(self) -> float | None:
        """How near the best version is to the roof, 1 at the roof."""
        return self.after / self.roof if self.roof else None


@dataclass(frozen=True)
class Roof:
    """A limit of the device: a slope of so many TB/s, or a level of so many TFLOP/s."""

    slope: float | None
    level: float | None
    measured: bool
    dtype: str = ""


def points(state: Experiment) -> list[Point]:
    """The workloads that were timed and count both bytes and operations."""
    setup = state.setup
    before, after = setup.measurement.timings, best(state).timings
    counted = [w for w in setup.problem.workloads if w.name in before and w.name in after and w.bytes > 0 < w.flops]
    return [
        Point(
            workload=w.name,
            dtype=short_dtype(w.dtype),
            intensity=w.flops / w.bytes,
            before=w.flops / before[w.name].latency_us / 1e6,
            after=w.flops / after[w.name].latency_us / 1e6,
            roof=_allowed(setup.device, short_dtype(w.dtype), w.flops / w.bytes),
        )
        for w in counted
    ]


def roofs(device: Device, dtypes: Sequence[str]) -> Iterator[Roof]:
    """What is known of the device's limits for these types, measured ones and nominal ones."""
    for peak, measured in ((device.measured_gbps, True), (device.bandwidth_gbps, False)):
        if peak is not None:
            yield Roof(peak.value / 1e3, None, measured)
    for name in dtypes:
        for peaks, measured in ((device.measured_tflops, True), (device.tflops, False)):
            if name in peaks:
                rate = peaks[name].value
                yield Roof(None, rate, measured, name)


def why_not(state: Experiment) -> str:
    """Why there is nothing to plot; empty where there is."""
    found = points(state)
    if not found:
        return "The problem counts no operations or no bytes, so that its workloads have no arithmetic intensity."
    if not list(roofs(state.setup.device, [p.dtype for p in found])):
        return "No limit of this device is known: none was measured, and it is not in the table of devices."
    return ""


def _allowed(device: Device, dtype: str, intensity: float) -> float | None:
    slope = device.measured_gbps.value / 1e3 * intensity if device.measured_gbps else None
    level = device.measured_tflops[dtype].value if dtype in device.measured_tflops else None
    known = [limit for limit in (slope, level) if limit]
    return min(known) if known else None
