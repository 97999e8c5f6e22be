"""The device as the user's torch sees it."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed
from pathlib import Path

import torch

from kopt_mcp.evaluator.files import HarnessError
from kopt_mcp.evaluator.nvml import Nvml
from kopt_mcp.evaluator.records import TorchDevice
from kopt_mcp.evaluator.runners import Gpu


def torch_device(device: str) -> TorchDevice:
    """Name, sizes and versions of `cpu` or `cuda:N`.

    Raises:
        HarnessError: torch sees no such device.
    """
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if (triton := version("triton")) is not None:
        versions["triton"] = triton
    if device == "cpu":
        return TorchDevice(
            kind="cpu",
            index=0,
            name=platform.processor() or platform.machine(),
            arch=platform.machine(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            sm_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            l2_bytes=_last_level_cache(),
            uuid=f"cpu-{platform.node()}",
            versions=versions,
        )
    if not torch.cuda.is_available():
        raise HarnessError(
            "ToolUnavailable",
            f"torch {torch.__version__} of {sys.executable} sees no GPU; take the device cpu, or a torch built for it.",
        )
    index = torch.device(device).index or 0
    props = torch.cuda.get_device_properties(index)
    hip = torch.version.hip is not None
    versions["rocm" if hip else "cuda"] = str(torch.version.hip if hip else torch.version.cuda)
    arch = props.gcnArchName.split(":")[0] if hip else f"sm_{props.major}{props.minor}"
    return TorchDevice(
        kind="hip" if hip else "cuda",
        index=index,
        name=props.name,
        arch=arch,
        memory_bytes=props.total_memory,
        sm_count=props.multi_processor_count,
        l2_bytes=int(getattr(props, "L2_cache_size", 0)) or (64 << 20),
        uuid=f"GPU-{props.uuid}" if hasattr(props, "uuid") else f"{props.name}-{index}",
        versions=versions,
    )


def only(here: TorchDevice) -> Gpu:
    """This device without others, which a candidate could have compute ahead of its calls; all where it is a slice of
    one, or has no node of its own."""
    try:
        nvml = Nvml(here.uuid)
    except OSError:
        return Gpu(here.index)
    minor = nvml.minor()
    if minor is None or nvml.sliced():
        return Gpu(here.index)
    # By its name: numbers count the devices that can be opened.
    return Gpu(0, (f"nvidia{minor}", "nvidiactl", "nvidia-*"), here.uuid)


def version(package: str) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return _installed(package)
    except PackageNotFoundError:
        return None


def _last_level_cache() -> int:
    """Bytes of the largest cache of CPU 0; 32 MiB where the system does not say."""
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text().strip()
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * scale)
    return max(sizes, default=32 << 20)
