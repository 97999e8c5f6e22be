"""What a platform finds, and how facts from elsewhere are merged into its devices. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kopt_mcp.devices import resolve, shared_bytes
from kopt_mcp.evaluator.records import Ceilings
from kopt_mcp.models import Device, Peak

UNKNOWN = "not in the table of devices: nominal peaks are unknown, only measured ones count"

SIZES = ("name", "arch", "memory_bytes", "sm_count", "l2_bytes", "shared_bytes", "partition")

# Pins may run a little above the published rate: an H200's do by 2.4 %.
NOMINAL_SLACK = 1.03


class Found(NamedTuple):
    """The devices a process may use, and what should be known about those it may not."""

    devices: list[Device]
    notes: list[str]


def with_spec(device: Device) -> Device:
    """Fill in what the table says: peaks always, sizes and counts only where the driver did not say."""
    spec = resolve(
        device.name,
        vendor="amd" if device.platform == "amd" else "nvidia",
        arch=device.arch or None,
        memory_bytes=device.memory_bytes,
        sm_count=device.sm_count,
    )
    if spec is None:
        shared, notes = device.shared_bytes or shared_bytes(device.arch), _merged(device.notes, [UNKNOWN])
        return device.model_copy(update={"shared_bytes": shared, "bandwidth_gbps": None, "tflops": {}, "notes": notes})
    known = {name: getattr(device, name) or getattr(spec, name) for name in SIZES}
    notes = _merged([note for note in device.notes if note != UNKNOWN], list(spec.notes))
    peaks = {"bandwidth_gbps": spec.bandwidth_gbps, "tflops": spec.tflops}
    return device.model_copy(update={**known, **peaks, "notes": notes})


def with_ceilings(device: Device, ceilings: Ceilings) -> Device:
    """Add what the evaluator reached on this device: the copy rate and the matrix product of each dtype.

    A nominal peak that was beaten is not this device's peak; it stays, with low confidence and a note.
    """

    def measured(value: float, what: str) -> Peak:
        return Peak(value=value, method="measured", source=f"{what}, {ceilings.measured_on}", confidence="high")

    notes = list(device.notes)

    def checked(peak: Peak, reached: float | None, what: str) -> Peak:
        if reached is None or reached <= peak.value * NOMINAL_SLACK:
            return peak
        beaten = f"measured {what} {reached:.4g} is above the nominal {peak.value:.4g}"
        notes.append(f"{beaten}: do not trust the nominal figure")
        return peak.model_copy(update={"confidence": "low"})

    bandwidth, fastest = device.bandwidth_gbps, max(ceilings.copy_gbps, ceilings.triad_gbps)
    update = {
        "measured_gbps": measured(ceilings.copy_gbps, "device copy"),
        "measured_tflops": {dtype: measured(rate, "matrix product") for dtype, rate in ceilings.tflops.items()},
        "bandwidth_gbps": bandwidth and checked(bandwidth, fastest, "bandwidth"),
        "tflops": {dtype: checked(peak, ceilings.tflops.get(dtype), dtype) for dtype, peak in device.tflops.items()},
    }
    return device.model_copy(update={**update, "notes": _merged(notes, [])})


def _merged(notes: list[str], more: list[str]) -> list[str]:
    return list(dict.fromkeys([*notes, *more]))
