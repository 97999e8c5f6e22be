"""AMD GPUs: rocminfo says which there are, amd-smi or the older rocm-smi how they are doing.

The tools count devices differently, so their answers are matched by the GPU's unique id, or by its PCI address where
that is unambiguous; never by position.
"""

from __future__ import annotations

import re

from kopt_mcp.models import Device
from kopt_mcp.platforms import pci
from kopt_mcp.platforms.amd_smi import Reading, parse_amd_smi, parse_rocm_smi
from kopt_mcp.platforms.host import Host, Ran, leading_integer
from kopt_mcp.platforms.interface import Found, with_spec
from kopt_mcp.platforms.profilers import rocprof, rocprofv3
from kopt_mcp.platforms.visible import Card, visible

_FOLDERS = ("/opt/rocm/bin", "/opt/rocm-*/bin")
_ROCM_SMI = (
    *("--showuniqueid", "--showbus", "--showclocks", "--showpower", "--showmaxpower", "--showtemp"),
    *("--showcomputepartition", "--showmemorypartition", "--showdriverversion", "--json"),
)


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
    return _visible(host, [_device(agent, readings, versions) for agent in agents])


def parse_rocminfo(text: str) -> list[str]:
    """What a rocminfo answer says of each GPU; CPUs and the generic ISA names are not agents of interest."""
    blocks = re.split(r"^\*+\s*\nAgent \d+\s*\n\*+\s*$", text, flags=re.MULTILINE)[1:]
    gpus = [block.split("ISA Info")[0] for block in blocks if re.search(r"^  Device Type:\s+GPU", block, re.MULTILINE)]
    return [gpu for gpu in gpus if re.search(r"^  Name:\s+gfx", gpu, re.MULTILINE)]


def _readings(host: Host) -> list[Reading]:
    amd_smi = host.which("amd-smi", *_FOLDERS) or "amd-smi"
    static = host.run([amd_smi, "static", "--json"])
    if static.ok and (found := parse_amd_smi(static.stdout, host.run([amd_smi, "metric", "--json"]).stdout)):
        return found
    return parse_rocm_smi(host.run([host.which("rocm-smi", *_FOLDERS) or "rocm-smi", *_ROCM_SMI]).stdout)


def _device(agent: str, readings: list[Reading], versions: dict[str, str]) -> Device:
    fields = dict(re.findall(r"^  (\S[^:\n]*):[ \t]*(.*?)[ \t]*$", agent, re.MULTILINE))
    arch, unique_id = fields["Name"].split(":")[0], _unique(fields.get("Uuid", ""))
    pools = re.findall(r"Segment:\s+(\w+).*?Size:\s+(\d+)\(", agent, re.DOTALL)
    sizes = {segment: max(int(size) for kind, size in pools if kind == segment) * 1024 for segment, _ in pools}
    # A CDNA3 GPU has an L2 in each die: the whole is in the table, rocminfo shows one.
    l2 = re.search(r"^\s+L2:\s+(\d+)", agent, re.MULTILINE) if arch not in ("gfx942", "gfx950") else None
    reading = _reading_of(unique_id, leading_integer(fields.get("BDFID")), readings)
    driver = {"driver": reading.driver} if reading.driver else {}
    device = Device(
        platform="amd",
        index=0,
        name=fields.get("Marketing Name", ""),
        arch=arch,
        uuid=f"GPU-{unique_id}" if unique_id else "",
        memory_bytes=sizes.get("GLOBAL"),
        sm_count=leading_integer(fields.get("Compute Unit")),
        l2_bytes=int(l2[1]) * 1024 if l2 else None,
        shared_bytes=sizes.get("GROUP"),
        clock_max_mhz=leading_integer(fields.get("Max Clock Freq. (MHz)")),
        versions={**driver, **versions},
    )
    return with_spec(device.model_copy(update=reading.state))


def _reading_of(unique_id: str, bdf: int | None, readings: list[Reading]) -> Reading:
    slot = None if bdf is None else f"{bdf >> 8 & 0xFF:02x}:{bdf >> 3 & 0x1F:02x}.{bdf & 7}"
    same_id = [one for one in readings if unique_id and _unique(one.unique_id) == unique_id]
    same_slot = [one for one in readings if slot and one.bdf.endswith(slot)]
    return next((fits[0] for fits in (same_id, same_slot) if len(fits) == 1), Reading())


def _visible(host: Host, devices: list[Device]) -> Found:
    mask = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in host.env else "CUDA_VISIBLE_DEVICES"
    # Devices without a unique id are told apart by their place, which is what an index in the mask means anyway.
    known = {device.uuid or f"#{place}": device for place, device in enumerate(devices)}
    found = visible(host, "AMD", mask, [Card(key) for key in known], known)
    profilers = [rocprofv3(host), rocprof(host)] if found.devices else []
    return Found([one.model_copy(update={"profilers": profilers}) for one in found.devices], found.notes)


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
