"""How a device is while calls are timed: its clocks, what slows it down, and who else uses it.

Asked by the harness, which knows its own processes and is not the candidate. A GPU that somebody else works on gives no
number: `DEVICE_BUSY`. One that is merely held in memory by an idle process is timed, and the result says so. What
cannot be seen (a MIG slice, a container without the host's process numbers) is called not visible; there a device that
works while nothing of ours runs is busy too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from kopt_mcp.evaluator import nvml, sandbox
from kopt_mcp.evaluator.faults import Fault
from kopt_mcp.evaluator.records import DeviceState, OtherProcess, Reading

BUSY_PCT = 5
"""Share of the device above which another process disturbs: a desktop that redraws its windows stays below."""
CLOCK_SHARE = 0.05
"""Spread of the SM clock over the blocks above which a result says so."""
BUSY_CORES = 0.5
"""Cores that others keep busy on average above which a result on a CPU says so."""
_TOO_BUSY = 0.75
"""Share of all cores above which it also says that its ratios are not to be relied upon."""
SETTLE_S = 1.5
"""Longest time that a device is given to show that it is idle: its own count reaches back up to a second."""
SLOWED = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
"""Reasons for a lowered clock that somebody should do something about; a power limit is part of a device."""

_MPS = "nvidia-cuda-mps"
_POLL_S = 0.1
_NOT_OURS = "this process itself is not in the driver's list (a container, or another process namespace)"


class Sensor(Protocol):
    """What can be asked of a GPU; `nvml.Nvml` is one."""

    def read(self, when: Literal["before", "during", "after"]) -> Reading:
        """Clocks, temperature and power now."""

    def sliced(self) -> bool:
        """Whether it is a slice of a device, whose other slices are not shown."""

    def processes(self) -> dict[int, int | None] | None:
        """Bytes of memory by process id; None where it does not say."""

    def utilisation(self) -> int | None:
        """Percent of the last moments in which it worked, for whomever."""

    def utilisation_by_process(self, since_us: int) -> dict[int, int] | None:
        """The largest percentage each process had since a time in microseconds; None where it does not say."""


class Observer(Protocol):
    """Accompanies one evaluation's timing."""

    def begin(self) -> None:
        """Nothing of the candidate runs yet."""

    def before(self) -> None:
        """Warm, and about to be timed."""

    def during(self) -> None:
        """Between two blocks."""

    def after(self) -> DeviceState:
        """The last block is over."""


class GpuObserver:
    """Watches a GPU through a sensor.

    Every method may raise `Fault` with DEVICE_BUSY: somebody else works on the device.
    """

    def __init__(
        self,
        sensor: Sensor,
        own: Callable[[], set[int]],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        name_of: Callable[[int], str] | None = None,
    ) -> None:
        self._sensor, self._own, self._clock, self._sleep = sensor, own, clock, sleep
        self._name_of = name_of or _name
        self._readings: list[Reading] = []
        self._others: dict[int, int | None] = {}
        self._hidden = ""
        self._since_us = 0

    def begin(self) -> None:
        """Where nobody can be named: see that the device is idle while nothing of ours runs."""
        if not self._why_hidden() and self._sensor.utilisation_by_process(self._now_us()) is not None:
            return
        end = self._clock() + SETTLE_S
        while (seen := self._sensor.utilisation() or 0) > BUSY_PCT:
            if self._clock() >= end:
                raise Fault(
                    "DEVICE_BUSY",
                    f"the device is {seen} % busy while nothing of this evaluation runs; by whom is not visible here; "
                    "end what else uses it, or choose another device, then call again",
                )
            self._sleep(_POLL_S)

    def before(self) -> None:
        """From here on another process's work counts."""
        self._hidden = self._why_hidden()
        self._since_us = self._now_us()
        self._read("before")

    def during(self) -> None:
        """See how the device is between two blocks."""
        self._read("during")

    def after(self) -> DeviceState:
        """The last look, and all that was seen."""
        busy = self._read("after")
        others = tuple(
            OtherProcess(pid, self._name_of(pid), size, None if busy is None else busy.get(pid, 0))
            for pid, size in self._others.items()
        )
        return DeviceState(tuple(self._readings), self._hidden or "visible", others)

    def _read(self, when: Literal["before", "during", "after"]) -> dict[int, int] | None:
        self._readings.append(self._sensor.read(when))
        if self._hidden:
            return None
        own = self._own()
        self._others |= {p: size for p, size in (self._sensor.processes() or {}).items() if p not in own}
        busy = self._sensor.utilisation_by_process(self._since_us)
        for pid in self._others:
            if (share := (busy or {}).get(pid, 0)) > BUSY_PCT:
                raise Fault(
                    "DEVICE_BUSY",
                    f"process {pid} ({self._name_of(pid)}) had {share} % of the device while calls were timed; a time "
                    "taken beside it says nothing; end it or wait for it, or choose another device, then call again",
                )
        return busy

    def _why_hidden(self) -> str:
        """Why it cannot be seen who else is there; empty where it can."""
        if self._sensor.sliced():
            return "not visible: a MIG slice does not show its neighbours"
        seen = self._sensor.processes()
        if seen is None:
            return "not visible: the driver does not list processes here"
        if any(self._name_of(pid).startswith(_MPS) for pid in seen):
            return "not visible: the multi-process service works in everybody's name"
        # What does not even show us shows nobody, or under numbers of another namespace.
        return "" if os.getpid() in seen else f"not visible: {_NOT_OURS}"

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)


Ticks = tuple[int, int, int]
"""Since the machine started: all, those in which a core was not idle, those of our own processes."""


class CpuObserver:
    """Watches how much of the machine others use, through /proc; elsewhere only the load average is known."""

    def __init__(self, own: Callable[[], set[int]], proc: Path = Path("/proc")) -> None:
        self._own, self._proc = own, proc
        self._start: Ticks | None = None

    def begin(self) -> None:
        """A CPU is shared as a rule; nothing is refused."""

    def before(self) -> None:
        """From here on others' work counts."""
        self._start = self._counts()

    def during(self) -> None:
        """Counters add up by themselves."""

    def after(self) -> DeviceState:
        """The load, and what others did since `before`."""
        return DeviceState(load=self._load(), other_cores=self._others(self._start, self._counts()))

    def _load(self) -> float | None:
        try:
            return round(os.getloadavg()[0], 2)
        except OSError:
            return None

    def _others(self, start: Ticks | None, end: Ticks | None) -> float | None:
        if start is None or end is None:
            return None
        total, busy, ours = (after - before for before, after in zip(start, end, strict=True))
        cores = os.cpu_count() or 1
        return round(max(0.0, busy - ours) / total * cores, 2) if total > 0 else None

    def _counts(self) -> Ticks | None:
        try:
            fields = [int(f) for f in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        idle = fields[3] + fields[4]
        return sum(fields), sum(fields) - idle, sum(self._ticks(pid) for pid in self._own())

    def _ticks(self, pid: int) -> int:
        """User and system time of a process with the children that it has waited for."""
        try:
            after_name = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return sum(int(ticks) for ticks in after_name[11:15])
        except (OSError, ValueError):
            return 0


class NoObserver:
    """For a device that nothing can be asked of."""

    def __init__(self, why: str) -> None:
        self._why = why

    def begin(self) -> None:
        """Nothing can be seen."""

    def before(self) -> None:
        """Nothing can be seen."""

    def during(self) -> None:
        """Nothing can be seen."""

    def after(self) -> DeviceState:
        """Only that nothing can be seen."""
        return DeviceState(processes=self._why)


class Observers:
    """Makes an observer for each evaluation on one device; the driver's library is loaded once."""

    def __init__(self, kind: str, uuid: str, sensor: Callable[[str], Sensor] = nvml.Nvml) -> None:
        self._kind, self._uuid, self._open = kind, uuid, sensor
        self._sensor: Sensor | None = None
        self._why = "not visible: no NVML on this platform"

    def __call__(self) -> Observer:
        """A fresh one."""
        if self._kind == "cpu":
            return CpuObserver(_own)
        if self._kind == "cuda" and self._sensor is None:
            try:
                self._sensor = self._open(self._uuid)
            except OSError as error:
                self._why = f"not visible: {error}"
        return NoObserver(self._why) if self._sensor is None else GpuObserver(self._sensor, _own)


def notes(state: DeviceState) -> list[str]:
    """What a reader of a time should know of how the device was."""
    return [*_slowed(state), *_clock_moved(state), *_held(state), *_busy_cores(state)]


def _slowed(state: DeviceState) -> list[str]:
    reasons = sorted({r for reading in state.readings for r in reading.throttle if r in SLOWED})
    if not reasons:
        return []
    hottest = max((r.temperature_c for r in state.readings if r.temperature_c is not None), default=None)
    heat = f" at {hottest} C" if hottest is not None else ""
    return [
        f"the device slowed itself down{heat} while calls were timed ({', '.join(reasons)}): the ratio is of "
        "alternating blocks and stands, the times are longer than they need be; see to cooling and power"
    ]


def _clock_moved(state: DeviceState) -> list[str]:
    clocks = [r.sm_mhz for r in state.readings if r.when == "during" and r.sm_mhz]
    if not clocks or max(clocks) <= (1 + CLOCK_SHARE) * min(clocks):
        return []
    share = 100 * (max(clocks) / min(clocks) - 1)
    return [
        f"the SM clock moved between {min(clocks)} and {max(clocks)} MHz ({share:.0f} %) over the blocks: the ratio is "
        "of alternating blocks and stands, compare the times with no others"
    ]


def _held(state: DeviceState) -> list[str]:
    return [
        f"process {other.pid} ({other.name}) holds {_memory(other.memory_bytes)} of the device; its share of the work "
        f"while calls were timed: {'not told' if other.utilisation_pct is None else f'{other.utilisation_pct} %'}"
        for other in state.others[:3]
    ]


def _busy_cores(state: DeviceState) -> list[str]:
    if state.other_cores is None or state.other_cores < BUSY_CORES:
        return []
    much = state.other_cores >= _TOO_BUSY * (os.cpu_count() or 1)
    what = (
        "two processes of one kernel can differ throughout a comparison; time it again on a quiet machine before you "
        "believe a ratio"
        if much
        else "times are noisier than on a quiet machine"
    )
    return [
        f"other processes kept {state.other_cores:g} of {os.cpu_count()} cores busy while calls were timed (load "
        f"average {state.load}): {what}"
    ]


def _memory(size: int | None) -> str:
    return "an unknown part" if size is None else f"{size / (1 << 30):.1f} GiB"


def _own() -> set[int]:
    return {os.getpid(), *sandbox.descendants(os.getpid())}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "name unknown"
