"""From what a driver says about a device to its row in the table, or to nothing.

The name decides only as a whole, and architecture, memory size and unit count have a veto: public tools have graded
H100 SXM against the PCIe card, L40 against L4 and H200 against H100 by matching part of a name.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from kopt_mcp.devices.table import GIB, Row, Vendor, shared_bytes, table
from kopt_mcp.models import Peak, Record

_MIG = re.compile(r"\s+mig\s+((?:\d+c\.)?(\d+)g\.(\d+)gb)\S*$", re.IGNORECASE)
_NAMELESS = re.compile(r"(amd )?(radeon|instinct)?( graphics)?( mi200 mcm oam .*)?")
_VIRTUAL = " vf"
_PARTITIONED = ("gfx942", "gfx950")


class Spec(Record):
    """A device's nominal limits. Peaks are dense; a slice's are its share."""

    name: str
    vendor: Vendor
    arch: str
    sm_count: int | None
    memory_bytes: int | None
    l2_bytes: int | None
    shared_bytes: int | None
    """Largest shared memory (LDS) of one block."""
    bandwidth_gbps: Peak | None
    tflops: dict[str, Peak]
    partition: str | None = None
    notes: tuple[str, ...] = ()


def normalise_name(name: str) -> str:
    """Lower case, one space between words, without (R), (TM) and the word GPU."""
    text = re.sub(r"\((r|tm)\)|[®™]", " ", name.lower())
    words = re.sub(r"[-_/()]", " ", text).split()
    return " ".join(word for word in words if word != "gpu")


def resolve(
    name: str,
    *,
    vendor: Vendor | None = None,
    arch: str | None = None,
    memory_bytes: int | None = None,
    sm_count: int | None = None,
) -> Spec | None:
    """The nominal limits of the device that reports all this, or None when it is not known for certain.

    `sm_count` counts SMs or CUs of the device as seen, that is of the slice for a MIG instance or an AMD partition.
    Whatever is given has to agree with the row; two rows left are as good as none.
    """
    arch = arch.split(":")[0] if arch else None
    if mig := _MIG.search(name):
        whole = candidates(name[: mig.start()], vendor, arch)
        return _mig_slice(whole[0], mig[1].lower(), int(mig[3]), sm_count) if len(whole) == 1 else None
    text, notes = normalise_name(name), list[str]()
    rows = candidates(name, vendor, arch)
    # ROCm may give no name, or a generic one; architecture, memory and CU count together still tell the product.
    nameless = not rows and vendor != "nvidia" and _NAMELESS.fullmatch(text) is not None
    if nameless and arch and memory_bytes and sm_count:
        rows = [row for row in _rows("amd", arch) if row.chip.memory_gib]
        told = f"{arch}, {sm_count} CUs and {memory_bytes / GIB:.0f} GiB"
        notes.append(f"the driver gives no product name: known by {told}")
    if text.endswith(_VIRTUAL):
        notes.append("a virtual function of the whole GPU: counters and clocks may be out of reach")
    fitting = [row for row in rows if row.sized(memory_bytes) and row.counted(sm_count)]
    if len(fitting) == 1:
        return _whole(fitting[0], *notes)
    return _partition(rows[0], sm_count) if len(rows) == 1 and not nameless else None


def candidates(name: str, vendor: Vendor | None = None, arch: str | None = None) -> list[Row]:
    """The rows that a name may stand for, before memory and unit count are asked."""
    text = normalise_name(name).removesuffix(_VIRTUAL)
    return [row for row in _rows(vendor, arch) if row.named(text)]


def _rows(vendor: Vendor | None, arch: str | None) -> list[Row]:
    return [row for row in table().devices if vendor in (None, row.chip.vendor) and arch in (None, row.chip.arch)]


def _whole(row: Row, *notes: str) -> Spec:
    specs = table()
    return Spec(
        name=row.name,
        vendor=row.chip.vendor,
        arch=row.chip.arch,
        sm_count=row.chip.units,
        memory_bytes=int(row.chip.memory_gib[0] * GIB) if len(row.chip.memory_gib) == 1 else None,
        l2_bytes=int(row.memory.l2_mib.value * (1 << 20)) if row.memory.l2_mib else None,
        shared_bytes=shared_bytes(row.chip.arch),
        bandwidth_gbps=specs.peak(row.memory.bandwidth_gbps),
        tflops={dtype: specs.peak(figure) for dtype, figure in specs.rates(row).items()},
        notes=(*row.notes, *notes),
    )


def _scaled(peak: Peak, share: float, why: str) -> Peak:
    lowered: Literal["low", "medium"] = "low" if peak.confidence == "low" else "medium"
    value = round(peak.value * share, 2)
    return Peak(value=value, method="computed", source=f"{why} of: {peak.source}", confidence=lowered)


def _mig_slice(row: Row, profile: str, size_gb: int, sm_count: int | None) -> Spec | None:
    """Bandwidth by memory slices, compute by SMs. None when the profile does not fit the product."""
    if row.mig is None:
        return None
    slices = size_gb / row.chip.memory_gib[0] * row.mig.memory_slices
    held = round(slices)
    if not 1 <= held <= row.mig.memory_slices or abs(slices - held) > 0.25:
        return None
    units = sm_count or row.mig.sms.get(profile)
    if units is not None and units > row.chip.units:
        return None
    share = f"{held}/{row.mig.memory_slices} (memory slices)"
    bandwidth = table().peak(row.memory.bandwidth_gbps)
    return _slice(
        _whole(row, *_slice_notes(row, profile, share, units)),
        units,
        name=f"{row.name} MIG {profile}",
        memory_bytes=size_gb * GIB,
        bandwidth_gbps=_scaled(bandwidth, held / row.mig.memory_slices, share),
        partition=profile,
    )


def _slice_notes(row: Row, profile: str, share: str, units: int | None) -> list[str]:
    compute = f"compute is {units}/{row.chip.units} (SMs)" if units else "compute is unknown without an SM count"
    notes = [f"MIG {profile} of a {row.name}: bandwidth is {share}, {compute}"]
    notes.append("MIG neighbours share clocks and power: their load is noise, and clocks cannot be locked")
    if "c." in profile:
        notes.append("other compute instances of the same GPU instance share its memory")
    return notes


def _slice(whole: Spec, units: int | None, **update: Any) -> Spec:
    """A part of a GPU with so many of its SMs or CUs, and that share of its compute."""
    tflops = {}
    if units is not None and whole.sm_count:
        why = f"{units}/{whole.sm_count} (SMs or CUs)"
        tflops = {dtype: _scaled(peak, units / whole.sm_count, why) for dtype, peak in whole.tflops.items()}
    return whole.model_copy(update={"sm_count": units, "l2_bytes": None, "tflops": tflops, **update})


def _partition(row: Row, sm_count: int | None) -> Spec | None:
    """An AMD GPU in DPX, TPX, QPX or CPX mode: compute by CUs; the partitions may share the memory, so no bandwidth."""
    if row.chip.arch not in _PARTITIONED or not sm_count or sm_count >= row.chip.units:
        return None
    parts, rest = divmod(row.chip.units, sm_count)
    if rest or parts not in (2, 3, 4, 6, 8):
        return None
    note = f"one of {parts} compute partitions; its share of the bandwidth cannot be told: measure"
    return _slice(_whole(row, note), sm_count, memory_bytes=None, bandwidth_gbps=None, partition=f"1/{parts}")


def describe_as(name: str) -> dict[str, Any]:
    """What the table says about a device by its name alone, for a machine that does not have it.

    `peak_gbps` in 1e9 bytes per second and `tflops` in 1e12 operations per second by dtype; `source` and
    `confidence` are those of `peak_gbps`. All null and empty when the name is unknown or stands for several products.
    """
    spec = resolve(name)
    if spec is None:
        return _unknown(name)
    peak = spec.bandwidth_gbps
    return {
        "name": name,
        "resolved_as": spec.name,
        "vendor": spec.vendor,
        "arch": spec.arch,
        "peak_gbps": peak.value if peak else None,
        "tflops": {dtype: figure.value for dtype, figure in spec.tflops.items()},
        "source": peak.source if peak else None,
        "confidence": peak.confidence if peak else None,
        "notes": list(spec.notes),
    }


def _unknown(name: str) -> dict[str, Any]:
    rows = candidates(_MIG.sub("", name))
    several = f"may be {' or '.join(row.name for row in rows)}: give the full name" if len(rows) > 1 else ""
    note = several or "not in the table: no percentage of a peak will be given, measure instead"
    empty: dict[str, Any] = dict.fromkeys(("resolved_as", "vendor", "arch", "peak_gbps", "source", "confidence"))
    return {"name": name, **empty, "tflops": {}, "notes": [note]}
