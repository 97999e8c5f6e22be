"""What the user's torch sees, merged into what the system tools see: by UUID, never by index.

Torch numbers devices after every mask and in CUDA's own order, and on a MIG instance it alone counts the SMs right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kopt_mcp.evaluator.records import TorchDevice
from kopt_mcp.models import Device, Platform
from kopt_mcp.platforms.interface import with_spec

UNSEEN = "the user's torch does not see this device"


def with_torch(devices: Sequence[Device], seen: Sequence[TorchDevice]) -> list[Device]:
    """GPUs in torch's order and with its indices, then GPUs that torch does not see, then the CPU.

    A device that only torch sees (no nvidia-smi, a UUID that does not match) is built from torch's facts alone.
    """
    gpus = [device for device in devices if device.platform != "cpu"]
    theirs = sorted((one for one in seen if one.kind != "cpu"), key=lambda one: one.index)
    pairs = _pairs(gpus, theirs)
    merged = [_merge(pairs.get(one.index), one) for one in theirs]
    taken = {id(device) for device in pairs.values()}
    first = max((one.index for one in theirs), default=-1) + 1
    unseen = [device for device in gpus if id(device) not in taken]
    hidden = [_updated(one, index=first + place, notes=[*one.notes, UNSEEN]) for place, one in enumerate(unseen)]
    versions = next((one.versions for one in seen if one.kind == "cpu"), {})
    cpus = [one for one in devices if one.platform == "cpu"]
    return [*merged, *hidden, *(_updated(one, versions={**one.versions, **versions}) for one in cpus)]


def _updated(device: Device, **update: Any) -> Device:
    return device.model_copy(update=update)


def uuid_key(uuid: str) -> str:
    """A UUID without prefix, dashes and case, so that all tools agree; empty when there is none.

    HIP fills the 16 bytes with the ASCII digits of the GPU's unique id, which torch prints as if they were a UUID.
    """
    text = uuid.lower()
    for prefix in ("gpu-", "mig-"):
        text = text.removeprefix(prefix)
    text = text.replace("-", "")
    if not text.strip("0x"):
        return ""
    try:
        inner = bytes.fromhex(text).decode("ascii")
        int(inner, 16)
    except ValueError:
        return text
    return inner if len(inner) == 16 else text


def _pairs(gpus: list[Device], theirs: list[TorchDevice]) -> dict[int, Device]:
    by_uuid = {uuid_key(device.uuid): device for device in gpus if uuid_key(device.uuid)}
    pairs = {one.index: by_uuid[uuid_key(one.uuid)] for one in theirs if uuid_key(one.uuid) in by_uuid}
    taken = {id(device) for device in pairs.values()}
    left = [one for one in theirs if one.index not in pairs]
    free = [device for device in gpus if id(device) not in taken]
    # One left on either side and nothing to tell them apart: the same device, if no UUID speaks against it.
    if len(left) == len(free) == 1 and _alike(free[0], left[0]):
        pairs[left[0].index] = free[0]
    return pairs


def _alike(device: Device, one: TorchDevice) -> bool:
    unnamed = not uuid_key(device.uuid) or not uuid_key(one.uuid)
    # CUDA may report the parent's UUID for a MIG instance; then the whole name, profile included, has to agree.
    sliced = " MIG " in device.name and device.name == one.name
    return device.arch == _arch(one) and (unnamed or sliced)


def _merge(device: Device | None, one: TorchDevice) -> Device:
    hip = one.kind == "hip"
    notes = ["seen by torch only: clocks, power and throttling are unknown"]
    platform: Platform = "amd" if hip else "nvidia"
    device = device or Device(
        platform=platform, index=one.index, name=one.name, arch=_arch(one), uuid=_uuid(one), notes=notes
    )
    merged = _updated(
        device,
        index=one.index,
        name=device.name or one.name,
        arch=device.arch or _arch(one),
        memory_bytes=device.memory_bytes or one.memory_bytes or None,
        # HIP counts RDNA in pairs of CUs and the L2 of one die of CDNA3: there rocminfo and the table know better.
        sm_count=(device.sm_count if hip else None) or one.sm_count or device.sm_count,
        l2_bytes=device.l2_bytes if hip else one.l2_bytes or device.l2_bytes,
        versions={**device.versions, **one.versions},
    )
    return with_spec(merged)


def _arch(one: TorchDevice) -> str:
    return one.arch.split(":")[0]


def _uuid(one: TorchDevice) -> str:
    key = uuid_key(one.uuid)
    if one.kind == "hip":
        return f"GPU-{key}" if key else ""
    return one.uuid if one.uuid.upper().startswith(("GPU-", "MIG-")) or not key else f"GPU-{one.uuid}"
