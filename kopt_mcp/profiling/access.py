"""What running a profiler on a real kernel has shown about the leave to read counters, by host, driver and tool."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from pathlib import Path

from kopt_mcp.models import Device
from kopt_mcp.models import Profiler as Tool
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.profilers import counters_restricted


class CounterAccess:
    """Remembers refusals and permissions in `cache`, so that a refusal costs its seconds once.

    What the driver says about restrictions and what privileges this process has are part of the key: granting them
    is noticed at once.
    """

    def __init__(self, cache: Path, host: Host) -> None:
        self._cache = cache
        self._host = host

    def refusal(self, tool: Tool, device: Device) -> str:
        """Why counters could not be read before; empty when they could, or when nobody has tried."""
        return self._known(tool, device).get("refusal", "")

    def record(self, tool: Tool, device: Device, refusal: str = "") -> None:
        """Remember that counters came back, or why not."""
        with contextlib.suppress(OSError):  # without a cache it is tried again, no more
            self._cache.mkdir(parents=True, exist_ok=True)
            self._file(tool, device).write_text(json.dumps({"refusal": refusal}), encoding="utf-8")

    def applied(self, device: Device) -> Device:
        """The device with its profilers' usability as it was found by trying, where it has been tried."""
        return device.model_copy(update={"profilers": [self._tried(tool, device) for tool in device.profilers]})

    def _tried(self, tool: Tool, device: Device) -> Tool:
        refusal = self._known(tool, device).get("refusal")
        return tool if refusal is None else tool.model_copy(update={"usable": not refusal, "remedy": refusal})

    def _known(self, tool: Tool, device: Device) -> dict[str, str]:
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(self._file(tool, device).read_text(encoding="utf-8"))
            if isinstance(told, dict) and isinstance(told.get("refusal"), str):
                return told
        return {}

    def _file(self, tool: Tool, device: Device) -> Path:
        driver = device.versions.get("driver", "") or device.versions.get("rocm", "")
        leave = [counters_restricted(self._host), self._host.is_admin()]
        key = [platform.node(), device.uuid, driver, tool.name, tool.version, *leave]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        return self._cache / f"counters-{digest}.json"
