"""What limits a kernel: the first rule that applies decides.

With counters: at a roof → launch-bound → too small a grid → the busier of memory and arithmetic → latency.
Without: the roofline; and where the time is far above it, which a roofline cannot explain, the bound that the problem
documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kopt_mcp.diagnosis import thresholds as limits
from kopt_mcp.diagnosis.roofline import Limit, Side
from kopt_mcp.diagnosis.signals import Signals
from kopt_mcp.diagnosis.thresholds import Threshold
from kopt_mcp.models import Bound, Evidence, Finding

Documented = Literal["memory", "compute", "latency"]
SIDES: tuple[Side, Side] = ("memory", "compute")


@dataclass(frozen=True)
class Verdict:
    """A bound, in words, with its numbers."""

    bound: Bound
    why: str
    evidence: tuple[Evidence, ...] = ()
    side: Side | None = None
    """Which roof, for `at_roof`."""


def classify(signals: Signals, documented: Documented | None) -> Verdict:
    """The bound. `documented`: `memory`, `compute` or `latency` as the problem states it."""
    verdict = _impossible(signals)
    if verdict is None and signals.counters:
        verdict = next((found for rule in COUNTER_RULES if (found := rule(signals))), None)
    return verdict or _by_roofline(signals, documented)


def evidence(metric: str, value: float, threshold: Threshold) -> Evidence:
    """One row, rounded to what the profilers print."""
    return Evidence(metric=metric, value=round(value, 2), threshold=float(threshold), source=threshold.source)


class Found(NamedTuple):
    """A finding, and the number that made it one."""

    finding: Finding
    evidence: Evidence | None = None


def found(
    name: str, tier: int, text: str, value: float, threshold: Threshold, *, metric: str, gain: float | None = None
) -> Found:
    """A finding by `metric`; `gain` in percent."""
    gain_pct = None if gain is None else round(max(0.0, gain), 1)
    return Found(Finding(name=name, text=text, tier=tier, gain_pct=gain_pct), evidence(metric, value, threshold))


def is_launch_bound(signals: Signals) -> bool:
    """Short kernels that the host cannot launch as fast as they run."""
    launch, device = signals.metrics.get("launch_us"), signals.device_us
    if signals.device.platform == "cpu" or not launch or not device:
        return False
    launches = sum(kernel.calls for kernel in signals.profile.kernels) or 1
    return device / launches < limits.LAUNCH_US and launch / device >= limits.LAUNCH_RATIO


def is_small_grid(signals: Signals) -> bool:
    """Fewer blocks than units, or less than one wave while nothing is busy (a persistent kernel keeps units busy)."""
    grid, units, waves = signals.metrics.get("grid_blocks"), signals.device.sm_count, signals.metrics.get("waves")
    if signals.device.platform == "cpu":
        return False
    if grid is not None and units and grid < units:
        return True
    idle = signals.busiest_pct is not None and signals.busiest_pct < limits.BUSY
    return waves is not None and waves < 1 and idle


def _impossible(signals: Signals) -> Verdict | None:
    limit, pct = signals.roof.limit, signals.roof_pct
    if limit is None or pct is None or pct <= limits.IMPOSSIBLE:
        return None
    why = (
        f"the call seems to run at {pct:.0f} % of the {limit.what}: its data stay in a cache, or the declared bytes or "
        "operations are too many. Take a larger workload"
    )
    return Verdict("unclear", why, (evidence("roof_pct", pct, limits.IMPOSSIBLE),))


def _launch_bound(signals: Signals) -> Verdict | None:
    if not is_launch_bound(signals):
        return None
    device, launch = signals.device_us or 0.0, signals.metrics["launch_us"]
    why = f"the device works {device:.1f} µs of a call for which the host needs {launch:.1f} µs"
    return Verdict("latency", why, (evidence("launch_ratio", launch / device, limits.LAUNCH_RATIO),))


def _at_memory_roof(signals: Signals) -> Verdict | None:
    nominal, measured = signals.metrics.get("dram_pct"), signals.dram_measured_pct
    seen = (("dram_pct", nominal, limits.HIGH), ("dram_measured_pct", measured, limits.MEASURED_HIGH))
    rows = [evidence(name, value, threshold) for name, value, threshold in seen if value is not None]
    if not any(row.value >= row.threshold for row in rows):
        return None
    shown = f"{nominal:.0f} % of the nominal bandwidth" if nominal is not None else f"{measured:.0f} % of the measured"
    if signals.redundancy is not None:
        rows.append(evidence("redundancy", signals.redundancy, limits.REDUNDANCY))
        if signals.redundancy > limits.REDUNDANCY:
            why = f"DRAM runs at {shown}, but moves {signals.redundancy:.1f} times the bytes that the problem needs"
            return Verdict("memory", why, tuple(rows))
    if signals.compute:
        rows.append(evidence(*signals.compute, limits.BUSY))
    return Verdict("at_roof", f"DRAM runs at {shown}, and only fewer bytes can be faster", tuple(rows), "memory")


def _at_compute_roof(signals: Signals) -> Verdict | None:
    limit, pct = signals.roof.compute, signals.roof_pct
    if limit is None or pct is None or signals.roof.side != "compute" or pct < _roof_threshold(limit):
        return None
    why = f"the operations run at {pct:.0f} % of the {limit.what}, and only fewer or narrower ones can be faster"
    return Verdict("at_roof", why, (evidence("compute_roof_pct", pct, _roof_threshold(limit)),), "compute")


def _roof_threshold(limit: Limit) -> Threshold:
    return limits.MEASURED_HIGH if limit.measured else limits.HIGH


def _small_grid(signals: Signals) -> Verdict | None:
    busiest = signals.busiest_pct
    if not is_small_grid(signals) or busiest is None or busiest >= limits.BUSY:
        return None
    grid = signals.metrics.get("grid_blocks")
    size = f"{grid:.0f} blocks" if grid is not None else f"{signals.metrics['waves']:.2f} waves"
    why = f"{size} do not fill {signals.device.sm_count or 'all'} units, and none is busy"
    return Verdict("latency", why, (evidence("busiest_pct", busiest, limits.BUSY),))


def _busier(signals: Signals) -> Verdict | None:
    """Memory or arithmetic where one is busy; both when they are about equal."""
    memory, compute = signals.memory, signals.compute
    known = [unit for unit in (memory, compute) if unit]
    if not known or max(unit[1] for unit in known) < limits.BUSY:
        return None
    rows = tuple(evidence(*unit, limits.BUSY) for unit in known)
    equal = memory is not None and compute is not None and abs(memory[1] - compute[1]) < limits.MARGIN
    if equal and not _feeds_arithmetic(signals):
        shown = " and ".join(f"{name} ({pct:.0f} %)" for name, pct in known)
        return Verdict("balanced", f"{shown} are about equally busy", rows)
    busiest = compute if equal and compute else max(known, key=lambda unit: unit[1])
    return Verdict(
        "memory" if busiest is memory else "compute", f"{busiest[0]} leads with {busiest[1]:.0f} % of its peak", rows
    )


def _feeds_arithmetic(signals: Signals) -> bool:
    """Busy caches under a problem that is all arithmetic carry its operands: they are no limit of their own."""
    on_chip = signals.memory is not None and signals.memory[0] in ("l1_pct", "l2_pct")
    return on_chip and signals.roof.side == "compute"


def _wasteful(signals: Signals) -> Verdict | None:
    """Nothing is busy, but accesses throw half of what they fetch away: the latency is the memory path's."""
    used, _ = signals.sector_use or (32.0, "")
    memory, compute = signals.memory, signals.compute
    if used >= limits.SECTOR_HALF or memory is None or (compute and compute[1] > memory[1]):
        return None
    why = f"only {used:.1f} of every 32 bytes fetched are used, and {memory[0]} is the busiest unit"
    return Verdict(
        "memory", why, (evidence("bytes_per_sector", used, limits.SECTOR_HALF), evidence(*memory, limits.BUSY))
    )


def _near_compute_roof(signals: Signals) -> Verdict | None:
    """No counter is high, and yet the operations run at most of the rate that a library was measured at."""
    limit, pct = signals.roof.compute, signals.roof_pct
    if limit is None or pct is None or not limit.measured or signals.roof.side != "compute" or pct < limits.BUSY:
        return None
    why = f"the operations run at {pct:.0f} % of the {limit.what}, though no unit's counter is high"
    return Verdict("compute", why, (evidence("compute_roof_pct", pct, limits.BUSY),))


def _latency(signals: Signals) -> Verdict | None:
    memory, compute = signals.memory, signals.compute
    if memory is None or compute is None:
        return None
    why = f"no unit is busy ({memory[0]} {memory[1]:.0f} %, {compute[0]} {compute[1]:.0f} %)"
    return Verdict("latency", why, (evidence(*memory, limits.BUSY), evidence(*compute, limits.BUSY)))


COUNTER_RULES: tuple[Callable[[Signals], Verdict | None], ...] = (
    _at_memory_roof,
    _at_compute_roof,
    _launch_bound,
    _small_grid,
    _busier,
    _near_compute_roof,
    _wasteful,
    _latency,
)


def _by_roofline(signals: Signals, documented: Documented | None) -> Verdict:
    roof = signals.roof
    if roof.side is None:
        stated = f"; the problem calls itself {documented}-bound" if documented else ""
        return Verdict("unclear", f"no peak of this device is known{stated}")
    if found := _at_analytic_roof(signals) or _launch_bound(signals):
        return found
    shares = {side: pct for side in SIDES if (pct := roof.pct(side, signals.latency_us)) is not None}
    if not shares and documented:
        return Verdict(documented, f"{documented}-bound by the problem's own word; nothing was timed")
    if not shares:
        return Verdict(roof.side, f"{roof.side} takes longer on this device's roofline; nothing was timed")
    rows = tuple(evidence(f"{side}_roof_pct", pct, limits.BUSY) for side, pct in shares.items())
    top = max(shares, key=shares.__getitem__)
    if shares[top] < limits.BUSY:
        return _far_below(signals, documented, shares[top], rows)
    if len(shares) == 2 and abs(shares["memory"] - shares["compute"]) < limits.MARGIN:
        return Verdict("balanced", "bytes and operations need about the same time", rows)
    return Verdict(top, f"the call reaches {shares[top]:.0f} % of its {top} roof", rows)


def _at_analytic_roof(signals: Signals) -> Verdict | None:
    limit, pct, side = signals.roof.limit, signals.roof_pct, signals.roof.side
    if limit is None or pct is None or pct < _roof_threshold(limit):
        return None
    rows = (evidence(f"{side}_roof_pct", pct, _roof_threshold(limit)),)
    return Verdict("at_roof", f"the call reaches {pct:.0f} % of the {limit.what}", rows, side)


def _far_below(signals: Signals, documented: Documented | None, pct: float, rows: tuple[Evidence, ...]) -> Verdict:
    """Far from the roof: wasted traffic, wasted work and waiting look alike from outside."""
    limit = signals.roof.limit
    reached = f"the call reaches {pct:.0f} % of the {limit.what if limit else 'roof'}"
    if is_small_grid(signals):
        return Verdict("latency", f"{reached}, and its grid does not fill the device", rows)
    if documented:
        return Verdict(documented, f"{reached}; {documented}-bound by the problem's own word", rows)
    return Verdict("latency", f"{reached}, with nothing to tell why", rows)
