"""What a platform finds, and how facts from elsewhere are merged into its devices. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kopt_mcp.devices import resolve, shared_bytes
from kopt_mcp.evaluator.records import Ceilings
from kopt_mcp.models import Device, Peak

UNKNOWN = "not in the table of devices: nominal peaks are unknown, only measured ones count"

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
        return device.model_copy(
            update={
                "shared_bytes": device.shared_bytes or shared_bytes(device.arch),
                "bandwidth_gbps": None,
                "tflops": {},
                "notes": _merged(device.notes, [UNKNOWN]),
            }
        )
    notes = [note for note in device.notes if note != UNKNOWN]
    return device.model_copy(
        update={
            "name": device.name or spec.name,
            "arch": device.arch or spec.arch,
            "memory_bytes": device.memory_bytes or spec.memory_bytes,
            "sm_count": device.sm_count or spec.sm_count,
            "l2_bytes": device.l2_bytes or spec.l2_bytes,
            "shared_bytes": device.shared_bytes or spec.shared_bytes,
            "partition": device.partition or spec.partition,
            "bandwidth_gbps": spec.bandwidth_gbps,
            "tflops": spec.tflops,
            "notes": _merged(notes, list(spec.notes)),
        }
    )


def with_ceilings(device: Device, ceilings: Ceilings) -> Device:
    """Add what the evaluator reached on this device: the copy rate and the matrix product of each dtype.

    A nominal peak that was beaten is not this device's peak; it stays, with low confidence and a note.
    """
    measured = _measured(ceilings.copy_gbps, f"device copy, {ceilings.measured_on}")
    rates = {
        dtype: _measured(value, f"matrix product, {ceilings.measured_on}") for dtype, value in ceilings.tflops.items()
    }
    bandwidth, beaten = _checked(device.bandwidth_gbps, max(ceilings.copy_gbps, ceilings.triad_gbps), "bandwidth")
    tflops = dict(device.tflops)
    for dtype, peak in device.tflops.items():
        kept, note = _checked(peak, ceilings.tflops.get(dtype), dtype)
        tflops[dtype] = kept or peak
        beaten += note
    return device.model_copy(
        update={
            "measured_gbps": measured,
            "measured_tflops": rates,
            "bandwidth_gbps": bandwidth,
            "tflops": tflops,
            "notes": _merged(device.notes, beaten),
        }
    )


def with_probe(device: Device, profiler: str, *, usable: bool, remedy: str = "") -> Device:
    """Replace the guess about a profiler by what running it on a real kernel showed."""
    profilers = [
        one.model_copy(update={"usable": usable, "remedy": remedy}) if one.name == profiler else one
        for one in device.profilers
    ]
    return device.model_copy(update={"profilers": profilers})


def _measured(value: float, source: str) -> Peak:
    return Peak(value=value, method="measured", source=source, confidence="high")


def _checked(peak: Peak | None, reached: float | None, what: str) -> tuple[Peak | None, list[str]]:
    if peak is None or reached is None or reached <= peak.value * NOMINAL_SLACK:
        return peak, []
    note = f"measured {what} {reached:.4g} is above the nominal {peak.value:.4g}: do not trust the nominal figure"
    return peak.model_copy(update={"confidence": "low"}), [note]


def _merged(notes: list[str], more: list[str]) -> list[str]:
    return list(dict.fromkeys([*notes, *more]))
