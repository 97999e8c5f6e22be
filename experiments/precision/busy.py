"""For how long a GPU was at work, by the samples that NVIDIA's driver takes of itself anyway."""

from __future__ import annotations

import ctypes
from itertools import pairwise

from kopt_mcp.evaluator.nvml import Nvml

_GPU_UTILISATION = 1
"""NVML_GPU_UTILIZATION_SAMPLES."""


class _Sample(ctypes.Structure):
    """nvmlSample_t, whose value is a union of 8 bytes that holds an unsigned int here."""

    _fields_ = (("time_us", ctypes.c_ulonglong), ("percent", ctypes.c_uint), ("unused", ctypes.c_uint))


class Busy(Nvml):
    """One device. Nothing is asked of it while something runs: the driver keeps the last samples."""

    def seconds(self, begin_us: int, end_us: int) -> float | None:
        """Time with a kernel on the device between two moments (since the epoch); None where the driver does not say.

        Off by up to a sample at both ends, a sixth of a second each. Kernels that only wait count too.
        """
        kind, count = ctypes.c_uint(), ctypes.c_uint()
        since = ctypes.c_ulonglong(begin_us)
        asked = (ctypes.c_uint(_GPU_UTILISATION), since, self._out(kind), self._out(count))
        if not self._ask("nvmlDeviceGetSamples", *asked, None) or not count.value:
            return None
        samples = (_Sample * count.value)()
        if not self._ask("nvmlDeviceGetSamples", *asked, samples):
            return None
        return busy_s([(one.time_us, one.percent) for one in samples[: count.value]], begin_us, end_us)


def busy_s(samples: list[tuple[int, int]], begin_us: int, end_us: int) -> float | None:
    """Seconds of work, from percentages of the time up to each moment (microseconds); None if there are none."""
    within = sorted(one for one in samples if begin_us < one[0] <= end_us)
    parts = [(now - then) * percent for (then, _), (now, percent) in pairwise([(begin_us, 0), *within])]
    return sum(parts) / 1e8 if parts else None
