"""Measure what a device can reach: the roof that every percentage is against.

The best of several medians, since a ceiling is what the device *can* do; the floor of plausible times rests on it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import torch

from kopt_mcp.evaluator.records import Ceilings
from kopt_mcp.evaluator.timing import clock_for

_ROUNDS, _REPEATS = {"cpu": 3, "cuda": 5}, {"cpu": 5, "cuda": 7}


def measure(device: str, cache_bytes: int, name: str) -> Ceilings:
    """Copy, triad and matrix products per dtype; about two seconds."""
    copy_gbps, triad_gbps = _bandwidths(device, cache_bytes)
    size = 1024 if device == "cpu" else 8192
    rates = {key: _matmul_tflops(device, cache_bytes, dtype, how, size) for key, dtype, how in _matmul_kinds(device)}
    return Ceilings(
        copy_gbps=copy_gbps,
        triad_gbps=triad_gbps,
        tflops={key: rate for key, rate in rates.items() if rate is not None},
        measured_on=f"{name}, torch {torch.__version__}, {datetime.date.today().isoformat()}",
    )


def _bandwidths(device: str, cache_bytes: int) -> tuple[float, float]:
    """Copy (two streams) and triad (three streams) over arrays that no cache holds, in GB/s."""
    if device == "cpu":
        count = min(max(64 << 20, 2 * cache_bytes), 512 << 20) // 4
    else:
        count = min(1 << 30, torch.cuda.mem_get_info()[0] // 4 // 4)
    a, b, c = (torch.rand(count, dtype=torch.float32, device=device) for _ in range(3))
    copy_us = _fastest(device, cache_bytes, lambda: a.copy_(b))
    triad_us = _fastest(device, cache_bytes, lambda: torch.add(b, c, alpha=1.5, out=a))
    return 2 * 4 * count / copy_us / 1e3, 3 * 4 * count / triad_us / 1e3


def _matmul_kinds(device: str) -> list[tuple[str, torch.dtype, str]]:
    if device == "cpu":
        return [("fp32", torch.float32, "highest")]
    return [
        ("fp32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
        ("fp16", torch.float16, "highest"),
        ("bf16", torch.bfloat16, "highest"),
    ]


def _matmul_tflops(device: str, cache_bytes: int, dtype: torch.dtype, precision: str, n: int) -> float | None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        x, y = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        us = _fastest(device, cache_bytes, lambda: x @ y)
    except RuntimeError:
        return None
    finally:
        torch.set_float32_matmul_precision(before)
    return 2 * n**3 / us / 1e6


def _fastest(device: str, cache_bytes: int, call: Callable[[], Any]) -> float:
    """Smallest median over the rounds, in microseconds."""
    clock = clock_for(device, cache_bytes)
    empty_us, repeats = clock.empty_us, _REPEATS[device]
    call()
    medians = []
    for _ in range(_ROUNDS[device]):
        # On a CPU the arrays are larger than any cache: there is nothing to evict.
        times = sorted(clock.sample(call, 100.0, warm=device == "cpu")[1].us for _ in range(repeats))
        medians.append(times[repeats // 2] - empty_us)
    return min(medians)
