"""Which devices are here, asked of the vendors' programs again only where the system shows other ones than before.

Before each evaluation the experiment's device must still be here. nvidia-smi and the profilers' version lines take a
second to say so; the device nodes and the driver's folders say at once that nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable

from kopt_mcp.models import Device
from kopt_mcp.platforms import detect_all
from kopt_mcp.platforms.host import Host

_SHOWN = (
    *(
        "/dev/nvidia*",
        "/dev/nvidia-caps/*",
        "/proc/driver/nvidia/gpus/*",
        "/proc/driver/nvidia/capabilities/gpu*/mig/*",
    ),
    *("/dev/kfd", "/dev/dri/*", "/sys/class/kfd/kfd/topology/nodes/*", "/dev/dxg"),
)
_MASKS = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
)

Evidence = tuple[tuple[str, ...], tuple[str | None, ...]]


class Present:
    """The devices that are here. What changes from moment to moment (clocks, power) is as old as the last detection."""

    def __init__(self, host: Host | None = None, detect: Callable[[], list[Device]] | None = None) -> None:
        self._host = host or Host()
        self._detect = detect or (lambda: detect_all(self._host))
        self._known: tuple[Evidence, list[Device]] | None = None

    def __call__(self) -> list[Device]:
        """Every usable device, see `detect_all`."""
        shown = self._evidence()
        if self._known is None or self._known[0] != shown:
            self._known = (shown, self._detect())
        return self._known[1]

    def _evidence(self) -> Evidence:
        nodes = tuple(path for pattern in _SHOWN for path in self._host.glob(pattern))
        return nodes, tuple(self._host.env.get(mask) for mask in _MASKS)
