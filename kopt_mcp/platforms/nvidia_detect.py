"""NVIDIA GPUs through nvidia-smi: no NVML binding, no CUDA context, and not a word of torch.

Three answers are put together by UUID: the CSV query (every GPU), `-q -x` (MIG instances, virtualisation, the CUDA
version of the driver) and `-L` (names and UUIDs of MIG instances). What a driver does not know stays null.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

from kopt_mcp.evaluator import nvml
from kopt_mcp.models import Device
from kopt_mcp.platforms import pci
from kopt_mcp.platforms.host import Host, Ran, Run
from kopt_mcp.platforms.interface import Found, with_spec
from kopt_mcp.platforms.profilers import cuda_toolkit, nvidia_profilers
from kopt_mcp.platforms.visible import Card, select

name = "nvidia"

_FOLDERS = ("/usr/lib/wsl/lib", "/usr/local/nvidia/bin")
_FIELDS = (
    "uuid",
    "name",
    "compute_cap",
    "memory.total",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "clocks_event_reasons.active",
    "mig.mode.current",
)
# Renamed with driver 535; older ones know only the second spelling.
_OLDER_FIELD = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}

Query = dict[str, str | None]


@dataclass(frozen=True)
class Instance:
    """A MIG device as `-q -x` shows it."""

    index: int
    gpu_instance: int | None
    compute_instance: int | None
    sm_count: int | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Details:
    """What only `-q -x` says about a GPU."""

    virtualization: str | None = None
    instances: dict[int, Instance] = field(default_factory=dict)


@dataclass(frozen=True)
class Listed:
    """A MIG device as `-L` shows it."""

    index: int
    profile: str
    uuid: str


def detect(host: Host) -> Found:
    """All NVIDIA devices that CUDA_VISIBLE_DEVICES leaves, in CUDA's order."""
    program = host.which("nvidia-smi", *_FOLDERS) or "nvidia-smi"
    gpus, ran = query_gpus(host.run, program)
    if not gpus:
        return Found([], _absence(host, ran))
    cuda, details = parse_details(host.run([program, "-q", "-x"]).stdout)
    listing = parse_listing(host.run([program, "-L"]).stdout) if any(map(_in_mig_mode, gpus)) else {}
    versions = {"cuda_driver": cuda, "cuda": cuda_toolkit(host)}
    devices: dict[str, Device] = {}
    cards, notes = [], []
    for gpu in gpus:
        uuid = gpu["uuid"] or ""
        base = _device(gpu, details.get(uuid, Details()), {k: v for k, v in versions.items() if v})
        slices = _slices(base, details.get(uuid, Details()), listing.get(uuid, [])) if _in_mig_mode(gpu) else [base]
        if not slices:
            notes.append(f"{base.name} {uuid} is in MIG mode without an instance: create one, or turn MIG off")
        devices |= {one.uuid: one for one in slices}
        cards.append(_card(uuid, slices, details.get(uuid, Details()), listing.get(uuid, [])))
    return _visible(host, devices, cards, notes)


def query_gpus(run: Run, program: str = "nvidia-smi") -> tuple[list[Query], Ran]:
    """One record a GPU, in PCI order. A field that this driver does not know is replaced or left out."""
    fields = list(_FIELDS)
    ran = Ran(failure="missing")
    for _ in range(2 * len(_FIELDS)):
        ran = run([program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        refused = re.search(r'Field "([^"]+)" is not a valid field', ran.stdout + ran.stderr)
        if not refused or refused[1] not in fields:
            break
        at = fields.index(refused[1])
        fields[at : at + 1] = [_OLDER_FIELD[refused[1]]] if refused[1] in _OLDER_FIELD else []
    return parse_query(ran.stdout, fields), ran


def parse_query(text: str, fields: list[str]) -> list[Query]:
    """Records of a `--format=csv,noheader,nounits` answer; `[N/A]` and its kin are None, other lines are skipped."""
    newest = {older: newer for newer, older in _OLDER_FIELD.items()}
    keys = [newest.get(key, key) for key in fields]
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) == len(fields)]
    records = [dict(zip(keys, map(_told, row), strict=True)) for row in rows]
    return [{**dict.fromkeys(_FIELDS), **record} for record in records if record.get("uuid")]


def parse_details(text: str) -> tuple[str | None, dict[str, Details]]:
    """CUDA version of the driver, and details by GPU UUID, of a `-q -x` answer; nothing where it is not XML."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None, {}
    return _told(root.findtext("cuda_version") or ""), {
        gpu.findtext("uuid", ""): _details(gpu) for gpu in root.iter("gpu")
    }


def parse_listing(text: str) -> dict[str, list[Listed]]:
    """MIG devices by the UUID of their GPU, of an `-L` answer."""
    found: dict[str, list[Listed]] = {}
    gpu = ""
    for line in text.splitlines():
        if card := re.match(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line):
            gpu = card[1]
        elif one := re.match(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)", line):
            found.setdefault(gpu, []).append(Listed(int(one[2]), one[1], one[3]))
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


def _device(gpu: Query, details: Details, versions: dict[str, str]) -> Device:
    capability, driver = gpu["compute_cap"], gpu["driver_version"]
    mode = (details.virtualization or "").lower()
    vgpu = mode in ("vgpu", "host vgpu")
    memory = _number(gpu["memory.total"])
    return Device(
        platform="nvidia",
        index=0,
        name=gpu["name"] or "",
        arch=f"sm_{capability.replace('.', '')}" if capability else "",
        uuid=gpu["uuid"] or "",
        memory_bytes=int(memory * (1 << 20)) if memory else None,
        clock_mhz=_integer(gpu["clocks.sm"]),
        clock_max_mhz=_integer(gpu["clocks.max.sm"]),
        power_w=_number(gpu["power.draw"]),
        power_limit_w=_number(gpu["power.limit"]),
        temperature_c=_number(gpu["temperature.gpu"]),
        throttle=throttle_reasons(gpu["clocks_event_reasons.active"]),
        partition="vGPU" if vgpu else None,
        versions={**({"driver": driver} if driver else {}), **versions},
        notes=["a vGPU: time is shared, and the host decides whether counters may be read"] if vgpu else [],
    )


def _slices(base: Device, details: Details, listed: list[Listed]) -> list[Device]:
    return [_slice(base, one, details.instances.get(one.index)) for one in listed]


def _slice(base: Device, one: Listed, instance: Instance | None) -> Device:
    return base.model_copy(
        update={
            "name": f"{base.name} MIG {one.profile}",
            "uuid": one.uuid,
            "memory_bytes": instance.memory_bytes if instance else None,
            "sm_count": instance.sm_count if instance else None,
            "partition": one.profile,
        }
    )


def _card(uuid: str, slices: list[Device], details: Details, listed: list[Listed]) -> Card:
    aliases = {}
    for one in listed:
        instance = details.instances.get(one.index)
        if instance and instance.gpu_instance is not None:
            aliases[f"MIG-{uuid}/{instance.gpu_instance}/{instance.compute_instance}"] = one.uuid
    return Card(uuid, tuple(one.uuid for one in slices if one.uuid != uuid), aliases)


def _visible(host: Host, devices: dict[str, Device], cards: list[Card], notes: list[str]) -> Found:
    mask = host.env.get("CUDA_VISIBLE_DEVICES")
    chosen = [uuid for uuid in select(mask, cards) if uuid in devices]
    if hidden := len(devices) - len(chosen):
        notes.append(f"CUDA_VISIBLE_DEVICES={mask!r} hides {hidden} of {len(devices)} NVIDIA devices")
    profilers = nvidia_profilers(host) if chosen else []
    mixed = len({device.name for device in devices.values()}) > 1 and host.env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    order = ["indices are in PCI order; CUDA's is fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID"] if mixed else []
    found = []
    for index, uuid in enumerate(chosen):
        device = devices[uuid]
        update = {"index": index, "profilers": profilers, "notes": [*device.notes, *order]}
        found.append(with_spec(device.model_copy(update=update)))
    return Found(found, notes)


def _in_mig_mode(gpu: Query) -> bool:
    return gpu["mig.mode.current"] == "Enabled"


def _details(gpu: ElementTree.Element) -> Details:
    instances = [_instance(one) for one in gpu.iter("mig_device")]
    mode = _told(gpu.findtext("gpu_virtualization_mode/virtualization_mode") or "")
    return Details(mode, {one.index: one for one in instances})


def _instance(one: ElementTree.Element) -> Instance:
    memory = _number(_told(one.findtext("fb_memory_usage/total") or ""))
    return Instance(
        index=_integer(one.findtext("index")) or 0,
        gpu_instance=_integer(one.findtext("gpu_instance_id")),
        compute_instance=_integer(one.findtext("compute_instance_id")),
        sm_count=_integer(one.findtext("device_attributes/shared/multiprocessor_count")),
        memory_bytes=int(memory * (1 << 20)) if memory else None,
    )


def _told(value: str) -> str | None:
    text = value.strip().strip("[]")
    return None if text in ("", "N/A", "None", "Not Supported", "Unknown Error", "Insufficient Permissions") else text


def _number(value: str | None) -> float | None:
    found = re.match(r"\s*(\d+(?:\.\d+)?)", value or "")
    return float(found[1]) if found else None


def _integer(value: str | None) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
