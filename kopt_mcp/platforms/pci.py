"""Display adapters on the PCI bus: tells a GPU without its driver, and names what is not supported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kopt_mcp.platforms.host import Host

NVIDIA, AMD, INTEL = "10de", "1002", "8086"
_DISPLAY_CLASS = "0x03"


class Adapter(NamedTuple):
    """One display or 3D controller."""

    slot: str
    vendor: str
    device: str


def adapters(host: Host) -> Iterator[Adapter]:
    """Every display adapter that sysfs shows; none where there is no sysfs (macOS, some sandboxes)."""
    slots = host.glob("/sys/bus/pci/devices/*")
    on_bus = [slot for slot in slots if (host.read(f"{slot}/class") or "").startswith(_DISPLAY_CLASS)]
    for folder in on_bus or host.glob("/sys/class/drm/card*/device"):
        vendor, device = ((host.read(f"{folder}/{part}") or "").strip() for part in ("vendor", "device"))
        if vendor:
            yield Adapter(folder.split("/")[-1], vendor.removeprefix("0x"), device.removeprefix("0x"))


def present(host: Host, vendor: str) -> bool:
    """Whether the vendor has a display adapter here."""
    return any(adapter.vendor == vendor for adapter in adapters(host))


def unsupported(host: Host) -> list[str]:
    """A note for each Intel GPU: named, and said to be unsupported."""
    intel = [adapter for adapter in adapters(host) if adapter.vendor == INTEL]
    names = parse_lspci(host.run(["lspci", "-D", "-nn"]).stdout) if intel else {}
    return [f"{names.get(one.slot) or f'Intel GPU 8086:{one.device}'} is not supported" for one in intel]


def parse_lspci(text: str) -> dict[str, str]:
    """Name of each device by its slot, from `lspci -D -nn`."""
    lines = re.findall(r"^(\S+) [^:]+\[[0-9a-f]{4}\]: (.+?) \[[0-9a-f]{4}:[0-9a-f]{4}\]", text, re.MULTILINE)
    return dict(lines)
