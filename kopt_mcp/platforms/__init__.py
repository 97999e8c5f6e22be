"""The vendors' side: which devices are here, which profilers, and what their reports say."""

from __future__ import annotations

from collections.abc import Callable

from kopt_mcp.models import Device
from kopt_mcp.platforms import amd_detect, cpu, nvidia_detect, pci
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.interface import Found, with_ceilings

__all__ = ["PLATFORMS", "Host", "detect_all", "with_ceilings"]

PLATFORMS: tuple[Callable[[Host], Found], ...] = (nvidia_detect.detect, amd_detect.detect, cpu.detect)
"""What finds the devices of each vendor; none raises, absence is an empty list.

In the order of preference: the first device of the first platform that has one is the default. The CPU has one."""


def detect_all(host: Host | None = None) -> list[Device]:
    """Every usable device, GPUs first and the CPU last, whatever is missing; never raises.

    What hides or hinders a GPU (a mask, a missing driver, an unsupported vendor) stands in the CPU's notes, the one
    device that is always there.
    """
    host = host or Host()
    found = [detect(host) for detect in PLATFORMS]
    devices = [device for one in found for device in one.devices]
    remarks = [note for one in found for note in one.notes] + pci.unsupported(host)
    last = devices[-1]
    return [*devices[:-1], last.model_copy(update={"notes": [*last.notes, *remarks]})]
