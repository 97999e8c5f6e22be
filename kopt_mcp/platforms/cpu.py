"""The CPU: always there, always last, its roof measured and never looked up."""

from __future__ import annotations

import os
import re

from kopt_mcp.models import Device
from kopt_mcp.platforms.host import Host, leading_integer
from kopt_mcp.platforms.interface import Found
from kopt_mcp.platforms.profilers import perf

# Widest first; what a vectoriser can aim at.
_VECTORS = ("amx_tile", "avx512f", "avx2", "avx", "sve", "asimd")
_SYSCTL = (
    *("machdep.cpu.brand_string", "hw.physicalcpu", "hw.memsize", "hw.l2cachesize", "hw.perflevel0.l2cachesize"),
    "hw.cpufrequency_max",
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def detect(host: Host) -> Found:
    """The one CPU device; `bandwidth_gbps` and `tflops` stay empty until the evaluator has measured them."""
    device = _macos(host) if host.system == "Darwin" else _linux(host)
    return Found([device.model_copy(update={"profilers": [perf(host)] if host.system == "Linux" else []})], [])


def _linux(host: Host) -> Device:
    info = host.read("/proc/cpuinfo") or ""
    lscpu = parse_lscpu(host.run(["lscpu"]).stdout)
    model = _field(info, "model name") or lscpu.get("Model name") or host.machine
    cores = physical_cores(info) or _cores(lscpu) or os.cpu_count()
    memory = leading_integer(_field(host.read("/proc/meminfo") or "", "MemTotal"))
    kilohertz = leading_integer(host.read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"))
    caches = _caches(host)
    limits = _limits(host)
    vectors = [flag for flag in _VECTORS if flag in (_field(info, "flags") or _field(info, "Features") or "").split()]
    notes = [f"caches: {', '.join(f'{level} {size >> 10} KiB' for level, size in caches.items())}"] if caches else []
    notes += [f"vector instructions: {', '.join(vectors)}"] if vectors else []
    return Device(
        platform="cpu",
        index=0,
        name=model,
        arch=host.machine,
        uuid=_uuid(model, cores),
        memory_bytes=memory << 10 if memory else None,
        sm_count=cores,
        l2_bytes=caches.get("L2"),
        l3_bytes=caches.get("L3"),
        clock_mhz=leading_integer(_field(info, "cpu MHz")),
        clock_max_mhz=kilohertz // 1000 if kilohertz else leading_integer(lscpu.get("CPU max MHz")),
        notes=[*notes, *limits],
    )


def _macos(host: Host) -> Device:
    answer = dict(re.findall(r"^([\w.]+): (.*)$", host.run(["sysctl", *_SYSCTL]).stdout, re.MULTILINE))
    model = answer.get("machdep.cpu.brand_string") or host.machine
    cores = leading_integer(answer.get("hw.physicalcpu")) or os.cpu_count()
    hertz = leading_integer(answer.get("hw.cpufrequency_max"))
    return Device(
        platform="cpu",
        index=0,
        name=model,
        arch=host.machine,
        uuid=_uuid(model, cores),
        memory_bytes=leading_integer(answer.get("hw.memsize")),
        sm_count=cores,
        l2_bytes=leading_integer(answer.get("hw.perflevel0.l2cachesize"))
        or leading_integer(answer.get("hw.l2cachesize")),
        clock_max_mhz=hertz // 1_000_000 if hertz else None,
    )


def parse_lscpu(text: str) -> dict[str, str]:
    """The fields of `lscpu` by their label."""
    return dict(re.findall(r"^\s*([^:\n]+):[ \t]+(.*?)[ \t]*$", text, re.MULTILINE))


def physical_cores(cpuinfo: str) -> int | None:
    """Distinct (socket, core) pairs of /proc/cpuinfo; None where it does not list them (ARM)."""
    sockets = re.findall(r"^physical id\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    cores = re.findall(r"^core id\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    return len(set(zip(sockets, cores, strict=True))) or None if len(sockets) == len(cores) else None


def _cores(lscpu: dict[str, str]) -> int | None:
    each = leading_integer(lscpu.get("Core(s) per socket")) or leading_integer(lscpu.get("Core(s) per cluster"))
    groups = leading_integer(lscpu.get("Socket(s)")) or leading_integer(lscpu.get("Cluster(s)")) or 1
    return each * groups if each else None


def _caches(host: Host) -> dict[str, int]:
    """Bytes of each cache that the first core sees, by level; L1 is the data cache."""
    found: dict[str, int] = {}
    for folder in host.glob("/sys/devices/system/cpu/cpu0/cache/index*"):
        level, kind, size = (host.read(f"{folder}/{part}") or "" for part in ("level", "type", "size"))
        told = re.match(r"(\d+)([KMG]?)", size)
        if told and kind.strip() != "Instruction":
            found[f"L{level.strip()}"] = int(told[1]) * _UNITS[told[2]]
    return found


def _limits(host: Host) -> list[str]:
    """What the control group leaves this process: a roof below the machine's."""
    quota = re.match(r"(\d+) (\d+)", host.read("/sys/fs/cgroup/cpu.max") or "")
    memory = re.match(r"\d+", host.read("/sys/fs/cgroup/memory.max") or "")
    cpus = [f"the control group allows {int(quota[1]) / int(quota[2]):g} CPUs"] if quota else []
    return cpus + ([f"the control group allows {int(memory[0]) >> 20} MiB of memory"] if memory else [])


def _uuid(model: str, cores: int | None) -> str:
    """CPUs have no UUID; the same model with as many cores counts as the same device."""
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"CPU-{slug}-{cores}"


def _field(text: str, label: str) -> str | None:
    found = re.search(rf"^{re.escape(label)}\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return found[1] if found else None
