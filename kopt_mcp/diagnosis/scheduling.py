"""Findings about how the work fills the device: launches, grid, registers, occupancy, stalls."""

from __future__ import annotations

import math

from kopt_mcp.diagnosis import thresholds as limits
from kopt_mcp.diagnosis.bound import Found, Verdict, found, is_launch_bound, is_small_grid
from kopt_mcp.diagnosis.signals import Signals
from kopt_mcp.diagnosis.thresholds import Threshold

# Stall reason → tier, and what the warps wait for.
STALLS: dict[str, tuple[int, str]] = {
    "long_scoreboard": (4, "global memory; keep more loads in flight"),
    "lg_throttle": (2, "the queue of global accesses; use fewer and wider ones"),
    "short_scoreboard": (2, "shared memory or special functions"),
    "mio_throttle": (2, "the queue of shared memory and special functions"),
    "barrier": (4, "other warps at a barrier"),
    "math_pipe_throttle": (3, "a full arithmetic pipe"),
    "wait": (4, "the result of the instruction before; give each thread independent work"),
    "no_instruction": (4, "instructions; unroll less"),
    "drain": (2, "stores to leave; store wider and in order"),
    "branch_resolving": (3, "branches"),
    "gmma": (4, "matrix products in flight; deepen the pipeline"),
    "membar": (4, "a memory fence"),
    "imc_miss": (2, "constants"),
    "sleeping": (4, "a sleep"),
    "tex_throttle": (2, "the texture queue"),
    "dispatch_stall": (4, "the dispatcher"),
    "waitcnt": (4, "memory or LDS; keep more loads in flight"),
    "lds": (2, "LDS"),
    "memory_unit": (2, "the memory unit; use fewer and wider accesses"),
}


def launch_bound(signals: Signals, _: Verdict) -> Found | None:
    device, launch = signals.device_us, signals.metrics.get("launch_us")
    if not device or not launch or not is_launch_bound(signals):
        return None
    text = f"The host needs {launch:.1f} µs to launch {device:.1f} µs of work: launch less often, or replay a graph."
    gain = 100 * (1 - device / launch)
    return found("launch-bound", 4, text, launch / device, limits.LAUNCH_RATIO, metric="launch_ratio", gain=gain)


def small_grid(signals: Signals, _: Verdict) -> Found | None:
    if not is_small_grid(signals):
        return None
    grid, units = signals.metrics.get("grid_blocks"), signals.device.sm_count
    if grid is None or not units or grid >= units:
        waves = signals.metrics["waves"]
        text = f"The grid is {waves:.2f} of one wave: split the work further."
        return found("small-grid", 4, text, waves, Threshold(1.0, limits.SOL_RULE), metric="waves")
    text = (
        f"{grid:.0f} blocks leave {units - grid:.0f} of {units} units idle: use smaller tiles or split the reduction."
    )
    threshold = Threshold(float(units), "units of the device")
    return found("small-grid", 4, text, grid, threshold, metric="grid_blocks", gain=100 * (1 - grid / units))


def tail(signals: Signals, _: Verdict) -> Found | None:
    waves = signals.metrics.get("waves")
    if waves is None or waves < 1 or waves // 1 > limits.TAIL_WAVES or waves % 1 == 0:
        return None
    rounds = math.ceil(waves)
    idle = 100 * (rounds - waves) / rounds
    if idle < limits.TAIL_IDLE_PCT:
        return None
    text = f"{waves:.2f} waves run as {rounds}, {idle:.0f} % of the time idle: change the tile, or persist."
    return found("tail", 4, text, idle, limits.TAIL_IDLE_PCT, metric="tail_idle_pct", gain=idle)


def spills(signals: Signals, _: Verdict) -> Found | None:
    spilled = signals.metrics.get("spill_bytes", 0.0)
    if spilled <= limits.SPILL_BYTES:
        return None
    registers = signals.metrics.get("registers")
    at = f" at {registers:.0f} registers" if registers else ""
    text = f"Registers spill to memory{at} ({spilled:.0f} bytes): smaller blocks, more warps, or fewer live values."
    return found("spills", 1, text, spilled, limits.SPILL_BYTES, metric="spill_bytes")


def _occupancy_matters(signals: Signals, verdict: Verdict) -> bool:
    tensor = signals.metrics.get("tensor_pct", 0.0)
    return verdict.bound != "at_roof" and tensor <= limits.TENSOR_KERNEL


def _capped(signals: Signals, gain: float) -> float:
    """Better scheduling cannot gain more than what the busiest unit has left, in percent."""
    return gain if signals.busiest_pct is None else min(gain, 100 - signals.busiest_pct)


def low_occupancy(signals: Signals, verdict: Verdict) -> Found | None:
    theoretical = signals.metrics.get("occupancy_theoretical_pct")
    if theoretical is None or theoretical >= limits.OCCUPANCY or not _occupancy_matters(signals, verdict):
        return None
    limiter = signals.facts.get("occupancy_limiter", "").replace("_", " ")
    because = f", limited by {limiter}" if limiter else ""
    text = f"At most {theoretical:.0f} % of the warp slots can be used{because}."
    gain = _capped(signals, 100 - theoretical)
    return found("low-occupancy", 4, text, theoretical, limits.OCCUPANCY, metric="occupancy_theoretical_pct", gain=gain)


def imbalance(signals: Signals, verdict: Verdict) -> Found | None:
    theoretical, achieved = (signals.metrics.get(name) for name in ("occupancy_theoretical_pct", "occupancy_pct"))
    if theoretical is None or achieved is None or not _occupancy_matters(signals, verdict):
        return None
    gap = theoretical - achieved
    if gap <= limits.IMBALANCE:
        return None
    text = (
        f"{achieved:.0f} % of the warp slots are used of {theoretical:.0f} % possible: blocks are uneven, few or short."
    )
    gain = _capped(signals, 100 * gap / theoretical)
    return found("imbalance", 4, text, gap, limits.IMBALANCE, metric="occupancy_gap_pct", gain=gain)


def top_stall(signals: Signals, verdict: Verdict) -> Found | None:
    """Not at a roof: there, warps wait for the roof."""
    if verdict.bound == "at_roof":
        return None
    shares = {reason: signals.metrics.get(f"stall_{reason}_pct", 0.0) for reason in STALLS}
    reason = max(shares, key=shares.__getitem__)
    issue = signals.metrics.get("issue_pct")
    if shares[reason] <= limits.STALL or (issue is not None and issue >= limits.ISSUE):
        return None
    tier, waits_for = STALLS[reason]
    gain = _capped(signals, shares[reason] if issue is None else min(shares[reason], 100 - issue))
    text = f"Warps spend {shares[reason]:.0f} % of their time on {reason}: waiting for {waits_for}."
    metric = f"stall_{reason}_pct"
    return found(f"stall-{reason}", tier, text, shares[reason], limits.STALL, metric=metric, gain=gain)


def odd_block(signals: Signals, _: Verdict) -> Found | None:
    threads = signals.metrics.get("block_threads", 0.0)
    if signals.device.platform == "cpu" or not threads or threads % signals.wave_lanes == 0:
        return None
    text = f"{threads:.0f} threads a block are no multiple of {signals.wave_lanes}: the last warp is partly idle."
    return found("odd-block", 1, text, threads % signals.wave_lanes, limits.WARP_MULTIPLE, metric="threads_over")
