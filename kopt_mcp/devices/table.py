"""The rows of specs.yaml, checked when they are loaded; the file's head says what each field means."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, NamedTuple

import yaml
from pydantic import BeforeValidator, Field

from kopt_mcp.devices.arch import ARCHITECTURES
from kopt_mcp.models import Peak, Record

GIB = 1 << 30
Vendor = Literal["nvidia", "amd"]
Source = Literal["datasheet", "tables", "computed"]

# Drivers keep part of the memory for ECC, page tables and firmware: 88 % is a T4 seen through torch.
REPORTED = (0.88, 1.03)


class Figure(NamedTuple):
    """One number of the table with where it comes from."""

    value: float
    source: Source = "datasheet"
    confidence: Literal["high", "medium", "low"] = "high"


Written = Annotated[Figure, BeforeValidator(lambda written: written if isinstance(written, list) else [written])]
"""A figure as it may be written: the number alone."""


class Chip(Record):
    """What a device must agree with, besides its name, to be this product."""

    arch: str
    units: int
    """Streaming multiprocessors or compute units."""
    clock_mhz: int | None = None
    memory_gib: tuple[float, ...] = ()

    @property
    def vendor(self) -> Vendor:
        """By the name of the architecture."""
        return "nvidia" if self.arch.startswith("sm_") else "amd"


class Memory(Record):
    """How fast a product's memory is, and how large its L2."""

    bandwidth_gbps: Written
    l2_mib: Written | None = None


class Mig(Record):
    """How an NVIDIA GPU can be cut."""

    memory_slices: int
    sms: dict[str, int] = Field(default_factory=dict)
    """Streaming multiprocessors by profile name (`1g.18gb`)."""


class Row(Record):
    """One product."""

    name: str
    pattern: str
    chip: Chip
    memory: Memory
    tflops: dict[str, Written] = Field(default_factory=dict)
    computed: Literal["medium", "low"] | None = None
    """The confidence of rates by the formula, where none are published."""
    half_rate: tuple[str, ...] = ()
    off_formula: dict[str, list[str]] = Field(default_factory=dict)
    """Reason to the dtypes whose published figure is more than 3 % off the formula."""
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
        return units in (None, self.chip.units)


class Architecture(Record):
    """What all products of one architecture share."""

    shared_bytes: int | None = None
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

    def rates(self, row: Row) -> dict[str, Figure]:
        """Published rates, else computed ones, in 1e12/s by dtype."""
        if row.computed is None:
            return row.tflops
        halved = [f"{dtype}_acc_fp16" for dtype in ("fp16", "fp8") if dtype in row.half_rate]
        dtypes = [*self.architectures[row.chip.arch].ops_per_clock, *halved]
        known = {dtype: rate for dtype in dtypes if (rate := self.formula_tflops(row, dtype))}
        return {dtype: Figure(round(rate, 1), "computed", row.computed) for dtype, rate in known.items()}

    def formula_tflops(self, row: Row, dtype: str) -> float | None:
        """units x clock x operations per clock (x derate off fp32), in 1e12/s; None where a factor is not known.

        `fp16_acc_fp16` and `fp8_acc_fp16` take the full rate of their type; `half_rate` is about the type itself.
        """
        arch = self.architectures[row.chip.arch]
        ops = arch.ops_per_clock.get(dtype.removesuffix("_acc_fp16"))
        if ops is None or row.chip.clock_mhz is None:
            return None
        derate = 1.0 if dtype == "fp32" else arch.derate
        half = 0.5 if dtype in row.half_rate else 1.0
        return row.chip.units * row.chip.clock_mhz * 1e6 * ops * derate * half / 1e12


@cache
def table() -> Table:
    """specs.yaml, read once.

    Raises:
        pydantic.ValidationError: the file does not have the shape above; a broken install.
    """
    text = files("kopt_mcp.devices").joinpath("specs.yaml").read_text(encoding="utf-8")
    return Table.model_validate(yaml.safe_load(text))


def shared_bytes(arch: str) -> int | None:
    """Largest shared memory (LDS) one block may ask for, in bytes; None for an architecture not in a table."""
    if arch in ARCHITECTURES:
        return ARCHITECTURES[arch].shared_block_bytes
    known = table().architectures.get(arch)
    return known.shared_bytes if known else None
