"""The rows of specs.yaml, checked when they are loaded; the file's head says what each field means."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

import yaml
from pydantic import Field

from kopt_mcp.models import Peak, Record

GIB = 1 << 30
Vendor = Literal["nvidia", "amd"]
Source = Literal["datasheet", "tables", "computed"]

# Drivers keep part of the memory for ECC, page tables and firmware: 88 % is a T4 seen through torch.
REPORTED = (0.88, 1.03)


class Figure(NamedTuple):
    """One number of the table with where it comes from."""

    value: float
    source: Source
    confidence: Literal["high", "medium", "low"]


class Chip(Record):
    """What a device must agree with, besides its name, to be this product."""

    vendor: Vendor
    arch: str
    units: int
    """Streaming multiprocessors or compute units."""
    clock_mhz: int | None = None
    memory_gib: tuple[float, ...] = ()


class Mig(Record):
    """How an NVIDIA GPU can be cut."""

    memory_slices: int
    sms: dict[str, int]
    """Streaming multiprocessors by profile name (`1g.18gb`)."""


class Row(Record):
    """One product."""

    name: str
    pattern: str
    chip: Chip
    bandwidth_gbps: Figure
    l2_mib: Figure | None = None
    tflops: dict[str, Figure] = Field(default_factory=dict)
    half_rate: tuple[str, ...] = ()
    off_formula: dict[str, list[str]] = Field(default_factory=dict)
    """Reason to the dtypes whose published figure is more than 3 % off the formula of tests/test_devices.py."""
    mig: Mig | None = None
    notes: tuple[str, ...] = ()

    def named(self, text: str) -> bool:
        """Whether `text`, a normalised device name, names this product in full."""
        brand = r"(nvidia )?(tesla |geforce )?" if self.chip.vendor == "nvidia" else r"(amd )?(instinct |radeon )?"
        return re.fullmatch(f"{brand}({self.pattern})", text) is not None

    def sized(self, memory_bytes: int | None) -> bool:
        """Whether a device that reports so much memory may be this product; unknown memory may."""
        if memory_bytes is None or not self.chip.memory_gib:
            return True
        low, high = REPORTED
        return any(low <= memory_bytes / GIB / size <= high for size in self.chip.memory_gib)

    def counted(self, units: int | None) -> bool:
        """Whether a device that reports so many SMs or CUs may be this product; an unknown count may."""
        if units is None or units == self.chip.units:
            return True
        # HIP counts RDNA in workgroup processors of two CUs each, rocminfo in CUs.
        return self.chip.arch.startswith("gfx1") and 2 * units == self.chip.units


class Architecture(Record):
    """What all products of one architecture share."""

    shared_bytes: int
    derate: float = 1.0
    ops_per_clock: dict[str, int]


class Table(Record):
    """All of specs.yaml."""

    sources: dict[Source, str]
    architectures: dict[str, Architecture]
    devices: list[Row]

    def peak(self, figure: Figure) -> Peak:
        """The figure as it is shown to the agent."""
        return Peak(
            value=figure.value,
            method="computed" if figure.source == "computed" else "table",
            source=self.sources[figure.source],
            confidence=figure.confidence,
        )


@cache
def table() -> Table:
    """specs.yaml, read once.

    Raises:
        pydantic.ValidationError: the file does not have the shape above; a broken install.
    """
    text = files("kopt_mcp.devices").joinpath("specs.yaml").read_text(encoding="utf-8")
    return Table.model_validate(yaml.safe_load(text))


def shared_bytes(arch: str) -> int | None:
    """Largest shared memory (LDS) one block may ask for, in bytes; None for an architecture not in the table."""
    known = table().architectures.get(arch)
    return known.shared_bytes if known else None
