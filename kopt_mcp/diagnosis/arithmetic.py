"""Findings about the arithmetic: which pipes work, and on how many lanes."""

from __future__ import annotations

from kopt_mcp.diagnosis import thresholds as limits
from kopt_mcp.diagnosis.bound import Verdict
from kopt_mcp.diagnosis.found import Found, found
from kopt_mcp.diagnosis.roofline import short_dtype
from kopt_mcp.diagnosis.signals import Signals


def unused_tensor_cores(signals: Signals, _: Verdict) -> Found | None:
    busy = signals.metrics.get("tensor_pct")
    if busy is None and not signals.counters and signals.static:
        busy = 0.0 if not any(kernel.mma for kernel in signals.static) else None
    if busy is None or busy >= limits.TENSOR_UNUSED.value or not signals.has_matrix_units:
        return None
    intensity = signals.flops / signals.bytes_needed if signals.bytes_needed else 0.0
    if intensity < limits.INTENSITY.value:
        return None
    name = short_dtype(signals.dtype)
    exact = " (as TF32, if the tolerance allows)" if name == "fp32" and signals.device.platform == "nvidia" else ""
    text = f"{intensity:.0f} operations a byte in {name}, and the matrix units idle: use a matrix instruction{exact}."
    return found("unused-tensor-cores", 3, text, busy, limits.TENSOR_UNUSED, metric="tensor_pct")


def fp64(signals: Signals, _: Verdict) -> Found | None:
    busy = signals.metrics.get("fp64_pct")
    if busy is None or busy <= limits.FP64.value or short_dtype(signals.dtype) == "fp64":
        return None
    text = f"The fp64 pipe is {busy:.0f} % busy in a kernel of {short_dtype(signals.dtype)}: look for double constants."
    return found("fp64", 3, text, busy, limits.FP64, metric="fp64_pct")


def special_functions(signals: Signals, _: Verdict) -> Found | None:
    busy = signals.metrics.get("xu_pct")
    if busy is None or busy < limits.BUSY.value:
        return None
    text = f"The special-function pipe is {busy:.0f} % busy: fewer exponentials, divisions and conversions."
    return found("special-functions", 3, text, busy, limits.BUSY, metric="xu_pct")


def divergence(signals: Signals, _: Verdict) -> Found | None:
    lanes = signals.metrics.get("divergence_lanes")
    if lanes is None or lanes / signals.wave_lanes >= limits.DIVERGENCE.value:
        return None
    text = f"{lanes:.0f} of {signals.wave_lanes} lanes work in an average instruction: masks or branches idle the rest."
    return found("divergence", 3, text, lanes / signals.wave_lanes, limits.DIVERGENCE, metric="active_lane_share")
