"""NVIDIA GPUs through nvidia-smi: no NVML binding, no CUDA context, and not a word of torch.

Three answers are put together by UUID: the CSV query (every GPU), `-q -x` (MIG instances, virtualisation, the CUDA
version of the driver) and `-L` (names and UUIDs of MIG instances). What a driver does not know stays null.
"""

from __future__ import annotations

import csv
import re
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from kopt_mcp.evaluator import nvml
from kopt_mcp.models import Device
from kopt_mcp.platforms import pci
from kopt_mcp.platforms.host import Host, Ran, Run, leading_integer, leading_number
from kopt_mcp.platforms.interface import Found, with_spec
from kopt_mcp.platforms.profilers import cuda_toolkit, nvidia_profilers
from kopt_mcp.platforms.visible import Card, visible

_FOLDERS = ("/usr/lib/wsl/lib", "/usr/local/nvidia/bin")
_FIELDS = (
    *("uuid", "name", "compute_cap", "memory.total", "driver_version", "clocks.sm", "clocks.max.sm", "power.draw"),
    *("power.limit", "temperature.gpu", "clocks_event_reasons.active", "mig.mode.current"),
)
# Renamed with driver 535; older ones know only the second spelling.
_OLDER_FIELD = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}

Query = dict[str, str | None]


class Listed(NamedTuple):
    """A MIG device as `-L` shows it."""

    profile: str
    number: str
    uuid: str


def detect(host: Host) -> Found:
    """All NVIDIA devices that CUDA_VISIBLE_DEVICES leaves, in CUDA's order."""
    program = host.which("nvidia-smi", *_FOLDERS) or "nvidia-smi"
    gpus, ran = query_gpus(host.run, program)
    if not gpus:
        return Found([], _absence(host, ran))
    root = _xml(host.run([program, "-q", "-x"]).stdout)
    shown = {gpu.findtext("uuid", ""): gpu for gpu in root.iter("gpu")}
    sliced = any(map(_in_mig_mode, gpus))
    listing = parse_listing(host.run([program, "-L"]).stdout) if sliced else {}
    versions = {"cuda_driver": _told(root.findtext("cuda_version")), "cuda": cuda_toolkit(host)}
    devices: dict[str, Device] = {}
    cards, notes = [], []
    for gpu in gpus:
        uuid = gpu["uuid"] or ""
        details = shown.get(uuid, Element("gpu"))
        whole = _device(gpu, details, {"driver": gpu["driver_version"], **versions})
        parts = _slices(whole, details, listing.get(uuid, []))
        if _in_mig_mode(gpu):
            devices |= {one.uuid: one for one in parts.values()}
            cards.append(Card(uuid, tuple(one.uuid for one in parts.values()), {k: v.uuid for k, v in parts.items()}))
            if not parts:
                notes.append(f"{whole.name} {uuid} is in MIG mode without an instance: create one, or turn MIG off")
        else:
            devices[uuid] = whole
            cards.append(Card(uuid))
    return _visible(host, devices, cards, notes)


def query_gpus(run: Run, program: str = "nvidia-smi") -> tuple[list[Query], Ran]:
    """One record a GPU, in PCI order. A field that this driver does not know is asked by its older name or left out.

    `[N/A]` and its kin are None; lines that are no record are skipped.
    """
    names = {name: name for name in _FIELDS}
    ran = Ran(failure="missing")
    for _ in range(2 * len(_FIELDS)):
        ran = run([program, f"--query-gpu={','.join(names.values())}", "--format=csv,noheader,nounits"])
        refused = re.search(r'Field "([^"]+)" is not a valid field', ran.stdout + ran.stderr)
        field = next((field for field, name in names.items() if refused and name == refused[1]), None)
        if field is None:
            break
        if older := _OLDER_FIELD.get(names.pop(field)):
            names[field] = older
    rows = csv.reader(ran.stdout.splitlines(), skipinitialspace=True)
    records = [dict(zip(names, map(_told, row), strict=True)) for row in rows if len(row) == len(names)]
    return [{**dict.fromkeys(_FIELDS), **record} for record in records if record.get("uuid")], ran


def _xml(text: str) -> Element:
    """A `-q -x` answer; an empty element where it is not XML."""
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return Element("nothing")


def parse_listing(text: str) -> dict[str, list[Listed]]:
    """MIG devices by the UUID of their GPU, of an `-L` answer."""
    found: dict[str, list[Listed]] = {}
    gpu = ""
    for line in text.splitlines():
        if card := re.match(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line):
            gpu = card[1]
        elif one := re.match(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)", line):
            found.setdefault(gpu, []).append(Listed(*one.groups()))
    return found


def throttle_reasons(mask: str | None) -> list[str]:
    """The names of the bits of a clocks-event mask as nvidia-smi writes it (`0x0000000000000004`)."""
    try:
        return nvml.throttle_reasons(int(mask or "0", 16))
    except ValueError:
        return []


def _absence(host: Host, ran: Ran) -> list[str]:
    hardware = pci.present(host, pci.NVIDIA) or host.read("/proc/driver/nvidia/version") is not None
    if ran.failure == "missing":
        return ["an NVIDIA GPU is here but nvidia-smi is not: install the driver's utilities"] if hardware else []
    return [f"nvidia-smi shows no GPU: {ran.reason}"]


def _device(gpu: Query, details: Element, versions: dict[str, str | None]) -> Device:
    mode = details.findtext("gpu_virtualization_mode/virtualization_mode", "").strip().lower()
    vgpu = mode in ("vgpu", "host vgpu")
    capability = gpu["compute_cap"]
    return Device(
        platform="nvidia",
        index=0,
        name=gpu["name"] or "",
        arch=f"sm_{capability.replace('.', '')}" if capability else "",
        uuid=gpu["uuid"] or "",
        memory_bytes=_mib(gpu["memory.total"]),
        clock_mhz=leading_integer(gpu["clocks.sm"]),
        clock_max_mhz=leading_integer(gpu["clocks.max.sm"]),
        power_w=leading_number(gpu["power.draw"]),
        power_limit_w=leading_number(gpu["power.limit"]),
        temperature_c=leading_number(gpu["temperature.gpu"]),
        throttle=throttle_reasons(gpu["clocks_event_reasons.active"]),
        partition="vGPU" if vgpu else None,
        versions={name: version for name, version in versions.items() if version},
        notes=["a vGPU: time is shared, and the host decides whether counters may be read"] if vgpu else [],
    )


def _slices(whole: Device, details: Element, listed: list[Listed]) -> dict[str, Device]:
    """The MIG instances of a GPU by their path, which masks may name them by (`MIG-GPU-…/1/0`)."""
    shown = {one.findtext("index", "").strip(): one for one in details.iter("mig_device")}
    slices = {}
    for one in listed:
        instance = shown.get(one.number, Element("mig_device"))
        ids = (instance.findtext(f"{kind}_instance_id", "").strip() for kind in ("gpu", "compute"))
        path = "/".join((f"MIG-{whole.uuid}", *ids))
        update = {
            "name": f"{whole.name} MIG {one.profile}",
            "uuid": one.uuid,
            "memory_bytes": _mib(instance.findtext("fb_memory_usage/total")),
            "sm_count": leading_integer(instance.findtext("device_attributes/shared/multiprocessor_count")),
            "partition": one.profile,
        }
        slices[path if len(instance) else one.uuid] = whole.model_copy(update=update)
    return slices


def _visible(host: Host, devices: dict[str, Device], cards: list[Card], notes: list[str]) -> Found:
    found = visible(host, "NVIDIA", "CUDA_VISIBLE_DEVICES", cards, devices)
    profilers = nvidia_profilers(host) if found.devices else []
    mixed = len({device.name for device in devices.values()}) > 1 and host.env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    order = ["indices are in PCI order; CUDA's is fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID"] if mixed else []
    told = [one.model_copy(update={"profilers": profilers, "notes": [*one.notes, *order]}) for one in found.devices]
    return Found([with_spec(one) for one in told], [*notes, *found.notes])


def _in_mig_mode(gpu: Query) -> bool:
    return gpu["mig.mode.current"] == "Enabled"


def _told(value: str | None) -> str | None:
    text = (value or "").strip().strip("[]")
    return None if text in ("", "N/A", "None", "Not Supported", "Unknown Error", "Insufficient Permissions") else text


def _mib(value: str | None) -> int | None:
    size = leading_integer(value)
    return size << 20 if size else None
