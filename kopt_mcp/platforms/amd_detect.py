"""AMD GPUs: rocminfo says which there are, amd-smi or the older rocm-smi how they are doing.

The tools count devices differently, so their answers are matched by the GPU's unique id, or by its PCI address where
that is unambiguous; never by position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kopt_mcp.models import Device
from kopt_mcp.platforms import pci
from kopt_mcp.platforms.amd_smi import Reading, parse_amd_smi, parse_rocm_smi
from kopt_mcp.platforms.host import Host, Ran
from kopt_mcp.platforms.interface import Found, with_spec
from kopt_mcp.platforms.profilers import amd_profilers
from kopt_mcp.platforms.visible import Card, select

name = "amd"

_FOLDERS = ("/opt/rocm/bin", "/opt/rocm-*/bin")
_ROCM_SMI = (
    "--showuniqueid",
    "--showbus",
    "--showclocks",
    "--showpower",
    "--showmaxpower",
    "--showtemp",
    "--showcomputepartition",
    "--showmemorypartition",
    "--showdriverversion",
    "--json",
)


@dataclass(frozen=True)
class Agent:
    """A GPU as rocminfo shows it. `l2_bytes` is of one die (XCD) on CDNA3 and newer."""

    arch: str
    name: str
    unique_id: str
    bdf: str
    units: int | None
    clock_max_mhz: int | None
    memory_bytes: int | None
    shared_bytes: int | None
    l2_bytes: int | None


def detect(host: Host) -> Found:
    """All AMD devices that HIP_VISIBLE_DEVICES, or else CUDA_VISIBLE_DEVICES, leaves, in HIP's order.

    ROCR_VISIBLE_DEVICES has already been applied: rocminfo sits above the runtime that reads it.
    """
    ran = host.run([host.which("rocminfo", *_FOLDERS) or "rocminfo"])
    agents = parse_rocminfo(ran.stdout)
    if not agents:
        return Found([], _absence(host, ran))
    readings = _readings(host)
    rocm = host.read("/opt/rocm/.info/version")
    versions = {"rocm": rocm.strip()} if rocm else {}
    devices = [_device(agent, _reading_of(agent, readings), versions) for agent in agents]
    return _visible(host, devices)


def parse_rocminfo(text: str) -> list[Agent]:
    """The GPU agents of a rocminfo answer; CPUs and the generic ISA names are not agents of interest."""
    blocks = re.split(r"^\*+\s*\nAgent \d+\s*\n\*+\s*$", text, flags=re.MULTILINE)[1:]
    agents = [
        _agent(block.split("ISA Info")[0])
        for block in blocks
        if re.search(r"^  Device Type:\s+GPU", block, re.MULTILINE)
    ]
    return [agent for agent in agents if agent.arch.startswith("gfx")]


def _agent(block: str) -> Agent:
    fields = dict(re.findall(r"^  (\S[^:\n]*):[ \t]*(.*?)[ \t]*$", block, re.MULTILINE))
    pools = re.findall(r"Segment:\s+(\w+).*?Size:\s+(\d+)\(", block, re.DOTALL)
    sizes = {segment: max(int(size) for kind, size in pools if kind == segment) * 1024 for segment, _ in pools}
    l2 = re.search(r"^\s+L2:\s+(\d+)", block, re.MULTILINE)
    bdf = _integer(fields.get("BDFID"))
    return Agent(
        arch=fields.get("Name", "").split(":")[0],
        name=fields.get("Marketing Name", ""),
        unique_id=_unique(fields.get("Uuid", "")),
        bdf="" if bdf is None else f"{bdf >> 8 & 0xFF:02x}:{bdf >> 3 & 0x1F:02x}.{bdf & 7}",
        units=_integer(fields.get("Compute Unit")),
        clock_max_mhz=_integer(fields.get("Max Clock Freq. (MHz)")),
        memory_bytes=sizes.get("GLOBAL"),
        shared_bytes=sizes.get("GROUP"),
        l2_bytes=int(l2[1]) * 1024 if l2 else None,
    )


def _readings(host: Host) -> list[Reading]:
    amd_smi = host.which("amd-smi", *_FOLDERS) or "amd-smi"
    static = host.run([amd_smi, "static", "--json"])
    if static.ok and (found := parse_amd_smi(static.stdout, host.run([amd_smi, "metric", "--json"]).stdout)):
        return found
    return parse_rocm_smi(host.run([host.which("rocm-smi", *_FOLDERS) or "rocm-smi", *_ROCM_SMI]).stdout)


def _reading_of(agent: Agent, readings: list[Reading]) -> Reading:
    same_id = [one for one in readings if agent.unique_id and _unique(one.unique_id) == agent.unique_id]
    same_slot = [one for one in readings if agent.bdf and one.bdf.endswith(agent.bdf)]
    for fits in (same_id, same_slot):
        if len(fits) == 1:
            return fits[0]
    return Reading()


def _device(agent: Agent, reading: Reading, versions: dict[str, str]) -> Device:
    # A CDNA3 GPU has an L2 in each die: the whole is in the table, rocminfo shows one.
    dies = agent.arch in ("gfx942", "gfx950")
    driver = {"driver": reading.driver} if reading.driver else {}
    return with_spec(
        Device(
            platform="amd",
            index=0,
            name=agent.name,
            arch=agent.arch,
            uuid=f"GPU-{agent.unique_id}" if agent.unique_id else "",
            memory_bytes=agent.memory_bytes,
            sm_count=agent.units,
            l2_bytes=None if dies else agent.l2_bytes,
            shared_bytes=agent.shared_bytes,
            clock_mhz=reading.clock_mhz,
            clock_max_mhz=agent.clock_max_mhz,
            power_w=reading.power_w,
            power_limit_w=reading.power_limit_w,
            temperature_c=reading.temperature_c,
            throttle=list(reading.throttle),
            partition=reading.partition,
            versions={**driver, **versions},
        )
    )


def _visible(host: Host, devices: list[Device]) -> Found:
    variable = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in host.env else "CUDA_VISIBLE_DEVICES"
    mask = host.env.get(variable)
    # Devices without a unique id are told apart by their place, which is what an index in the mask means anyway.
    keys = [device.uuid or f"#{place}" for place, device in enumerate(devices)]
    chosen = select(mask, [Card(key) for key in keys])
    hidden = len(devices) - len(chosen)
    notes = [f"{variable}={mask!r} hides {hidden} of {len(devices)} AMD devices"] if hidden else []
    profilers = amd_profilers(host) if chosen else []
    by_key = dict(zip(keys, devices, strict=True))
    found = [
        by_key[key].model_copy(update={"index": index, "profilers": profilers}) for index, key in enumerate(chosen)
    ]
    return Found(found, notes)


def _absence(host: Host, ran: Ran) -> list[str]:
    hardware = pci.present(host, pci.AMD) or host.read("/sys/module/amdgpu/version") is not None
    if ran.failure == "missing":
        return ["an AMD GPU is here but rocminfo is not: install ROCm"] if hardware else []
    text = ran.stdout + ran.stderr
    if "/dev/kfd" in text and re.search(r"permission denied|not a member|not member", text, re.IGNORECASE):
        return ["rocminfo may not open /dev/kfd: add the user to the render and video groups, or pass the device on"]
    return [f"rocminfo shows no GPU: {ran.reason}"] if hardware or not ran.ok else []


def _unique(text: str) -> str:
    """The 16 hexadecimal digits that identify a GPU; empty where the driver has none (`GPU-XX`)."""
    digits = text.lower().removeprefix("gpu-").removeprefix("0x")
    return digits.zfill(16) if re.fullmatch(r"[0-9a-f]{8,16}", digits) else ""


def _integer(text: str | None) -> int | None:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else None
