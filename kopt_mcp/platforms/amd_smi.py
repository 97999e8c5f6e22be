"""The JSON of amd-smi and of the older rocm-smi, whose layouts change with each ROCm, as one record a GPU."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from kopt_mcp.platforms.host import leading_number


@dataclass(frozen=True)
class Reading:
    """State of one GPU."""

    unique_id: str = ""
    bdf: str = ""
    driver: str | None = None
    state: dict[str, Any] = field(default_factory=dict)
    """Fields of a `Device`: MHz, watts, degrees Celsius; None where the tool says N/A."""


def parse_amd_smi(static: str, metric: str) -> list[Reading]:
    """Readings of `amd-smi static --json` and `amd-smi metric --json`, joined by amd-smi's own GPU number."""
    state = {one.get("gpu"): one for one in _gpus(metric)}
    return [_amd_smi(one, state.get(one.get("gpu"), {})) for one in _gpus(static)]


def parse_rocm_smi(text: str) -> list[Reading]:
    """Readings of `rocm-smi … --json`."""
    answer = _json(text)
    cards = answer if isinstance(answer, dict) else {}
    driver = cards.get("system", {}).get("Driver version")
    return [_rocm_smi(card, driver) for key, card in cards.items() if key.startswith("card")]


def _amd_smi(fixed: dict[str, Any], state: dict[str, Any]) -> Reading:
    power, cut = state.get("power", {}), fixed.get("partition", {})
    clock = _first(_path(state, "clock", "gfx_0"), "clk")
    compute = cut.get("compute_partition") or cut.get("accelerator_partition")
    return Reading(
        unique_id=str(_path(fixed, "asic", "asic_serial") or ""),
        bdf=str(_path(fixed, "bus", "bdf") or ""),
        driver=_path(fixed, "driver", "version"),
        state={
            "clock_mhz": None if clock is None else int(clock),
            "power_w": _first(power, "socket_power", "current_socket_power", "average_socket_power"),
            "power_limit_w": _first(fixed.get("limit"), "socket_power", "socket_power_limit", "max_power", "power_cap"),
            "temperature_c": _first(state.get("temperature"), "hotspot", "edge"),
            "throttle": ["throttled"] if power.get("throttle_status") == "THROTTLED" else [],
            "partition": _partition(compute, cut.get("memory_partition")),
        },
    )


def _rocm_smi(card: dict[str, Any], driver: str | None) -> Reading:
    clock = re.search(r"(\d+)\s*mhz", str(card.get("sclk clock speed:", "")), re.IGNORECASE)
    power = ("Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)")
    return Reading(
        unique_id=str(card.get("Unique ID", "")),
        bdf=str(card.get("PCI Bus", "")),
        driver=driver,
        state={
            "clock_mhz": int(clock[1]) if clock else None,
            "power_w": _first(card, *power),
            "power_limit_w": _first(card, "Max Graphics Package Power (W)"),
            "temperature_c": _first(card, "Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)"),
            "partition": _partition(card.get("Compute Partition"), card.get("Memory Partition")),
        },
    )


def _partition(compute: Any, memory: Any) -> str | None:
    """SPX with one memory domain is the whole GPU; NPS2 and above cut its memory even then."""
    names = [str(part).upper() for part in (compute, memory) if re.fullmatch(r"[SDTQC]PX|NPS\d", str(part).upper())]
    return None if set(names) <= {"SPX", "NPS1"} else "/".join(names)


def _gpus(text: str) -> list[dict[str, Any]]:
    answer = _json(text)
    listed = answer.get("gpu_data", []) if isinstance(answer, dict) else answer
    return [one for one in listed or [] if isinstance(one, dict)]


def _json(text: str) -> Any:
    """The first JSON value of a text: warnings may come before it and a legend after."""
    start = re.search(r"^[\[{]", text, re.MULTILINE)
    if not start:
        return None
    try:
        return json.JSONDecoder().raw_decode(text[start.start() :])[0]
    except json.JSONDecodeError:
        return None


def _path(node: Any, *keys: str) -> Any:
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _first(node: Any, *keys: str) -> float | None:
    """The first of `keys` that is a number: bare, in a string, or amd-smi's {"value": …, "unit": …}."""
    found = [node.get(key) for key in keys] if isinstance(node, dict) else []
    values = (leading_number(one.get("value") if isinstance(one, dict) else one) for one in found)
    return next((value for value in values if value is not None), None)
