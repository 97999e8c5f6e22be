"""What an NVIDIA device says of itself, through the driver's own library: no package and no process are needed.

Only what an evaluation needs: clocks, reasons for a lowered one, temperature, power, and who else is on the device.
Names and numbers are those of NVIDIA's nvml.h. A question that a driver, a MIG slice or a container does not answer is
None, never a guess.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from kopt_mcp.evaluator.records import Reading

LIBRARY = "libnvidia-ml.so.1"
GPU_IDLE = 0x1
THROTTLE_REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""nvmlClocksEventReason*, by bit."""

_SUCCESS, _NOT_FOUND, _TOO_SMALL, _NO_FUNCTION = 0, 6, 7, 13
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_MOST_PROCESSES = 1024
_UNKNOWN_MEMORY = (1 << 64) - 1


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t, which the third version of the question returns too."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Sample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t; the time is in microseconds since the epoch."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


def throttle_reasons(bits: int) -> list[str]:
    """The names of the bits of a clocks-event mask; bits without a name keep their number.

    A GPU that idles lowers its clock as it should: that is no throttling.
    """
    bits &= ~GPU_IDLE
    named = [reason for bit, reason in THROTTLE_REASONS.items() if bits & bit]
    rest = bits & ~sum(THROTTLE_REASONS)
    return [*named, f"unknown_{rest:#x}"] if rest else named


class Nvml:
    """One device of this machine."""

    def __init__(self, uuid: str, library: str = LIBRARY) -> None:
        """`uuid` as torch says it, with `GPU-` before it; a MIG slice is found by the same digits.

        Raises:
            OSError: no library, no driver, or no such device.
        """
        self._nvml = ctypes.CDLL(library)
        if self._nvml.nvmlInit_v2() != _SUCCESS:
            raise OSError(f"{library} does not start: no NVIDIA driver is running")
        self._device = ctypes.c_void_p()
        names = (uuid, f"MIG-{uuid.removeprefix('GPU-')}")
        if not any(self._call("nvmlDeviceGetHandleByUUID", name.encode(), self._out(self._device)) for name in names):
            raise OSError(f"{library} knows no device {uuid}")

    def read(self, when: Any) -> Reading:
        """Clocks, their limits, temperature and power now."""
        power_mw = self._number("nvmlDeviceGetPowerUsage")
        mask = ctypes.c_ulonglong()
        told = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._out(mask))
        return Reading(
            when=when,
            sm_mhz=self._number("nvmlDeviceGetClockInfo", _CLOCK_SM),
            memory_mhz=self._number("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            temperature_c=self._number("nvmlDeviceGetTemperature", 0),
            power_w=None if power_mw is None else power_mw / 1000,
            throttle=tuple(throttle_reasons(mask.value)) if told else (),
        )

    def minor(self) -> int | None:
        """The number of the device's node: `/dev/nvidia3` of 3."""
        return self._number("nvmlDeviceGetMinorNumber")

    def sliced(self) -> bool:
        """Whether the device is a MIG slice, or cut into such."""
        slice_ = ctypes.c_uint()
        if self._ask("nvmlDeviceIsMigDeviceHandle", self._out(slice_)) and slice_.value:
            return True
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        return self._ask("nvmlDeviceGetMigMode", self._out(now), self._out(pending)) and bool(now.value)

    def processes(self) -> dict[int, int | None] | None:
        """Bytes of device memory by process id, of all that have a context; None where the driver does not say."""
        lists = [self._processes(f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Compute", "Graphics")]
        if lists[0] is None:
            return None
        return {**(lists[1] or {}), **lists[0]}

    def utilisation(self) -> int | None:
        """Percent of the last sampling period (a sixth of a second to a second) in which a kernel ran."""
        rates = _Utilisation()
        return int(rates.gpu) if self._ask("nvmlDeviceGetUtilizationRates", self._out(rates)) else None

    def utilisation_by_process(self, since_us: int) -> dict[int, int] | None:
        """The largest percentage of the multiprocessors that each process had since then; None where it is not told."""
        count = ctypes.c_uint()
        since = ctypes.c_ulonglong(since_us)
        first = self._code("nvmlDeviceGetProcessUtilization", self._device, None, self._out(count), since)
        if first not in (_SUCCESS, _TOO_SMALL):
            # Both "no process did anything" and "not supported" come this way: the first has a code of its own.
            return {} if first == _NOT_FOUND else None
        samples = (_Sample * max(1, min(count.value, _MOST_PROCESSES)))()
        count.value = len(samples)
        if not self._ask("nvmlDeviceGetProcessUtilization", samples, self._out(count), since):
            return {}
        found: dict[int, int] = {}
        for sample in samples[: count.value]:
            if sample.sm <= 100:
                found[sample.pid] = max(found.get(sample.pid, 0), sample.sm)
        return found

    def _processes(self, function: str) -> dict[int, int | None] | None:
        for version in ("_v3", "_v2"):
            found = (_Process * _MOST_PROCESSES)()
            count = ctypes.c_uint(_MOST_PROCESSES)
            if self._ask(function + version, self._out(count), found):
                return dict(_memory_of(found[: count.value]))
        return None

    def _number(self, function: str, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        asked = (ctypes.c_int(one) for one in arguments)
        return int(value.value) if self._ask(function, *asked, self._out(value)) else None

    def _ask(self, function: str, *arguments: Any) -> bool:
        return self._call(function, self._device, *arguments)

    def _call(self, function: str, *arguments: Any) -> bool:
        return self._code(function, *arguments) == _SUCCESS

    def _code(self, function: str, *arguments: Any) -> int:
        """A driver's library may be too old to have the function: that is an answer too."""
        try:
            return int(self._nvml[function](*arguments))
        except AttributeError:
            return _NO_FUNCTION

    @staticmethod
    def _out(value: Any) -> Any:
        return ctypes.byref(value)


def _memory_of(found: list[_Process]) -> Iterator[tuple[int, int | None]]:
    for one in found:
        yield int(one.pid), None if one.memory == _UNKNOWN_MEMORY else int(one.memory)
