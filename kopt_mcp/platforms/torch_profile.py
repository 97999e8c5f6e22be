"""Kernel times without counters, as CUPTI or torch.profiler lists them, made into a `Profile`.

Durations and names need no counter permission, so this rung works where ncu and rocprofv3 are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from kopt_mcp.evaluator.records import KernelTime
from kopt_mcp.models import Profile
from kopt_mcp.platforms.reports import Launch, assemble


def to_profile(
    times: Sequence[KernelTime],
    *,
    workload: str,
    why: str,
    rung: Literal["cupti", "torch_profiler"] = "torch_profiler",
    authored: Collection[str] = (),
    repeats: int = 1,
    launch_us: float | None = None,
    artifacts: Sequence[str] = (),
) -> Profile:
    """A profile from the kernels of `repeats` calls of the candidate.

    `authored`: names of the candidate's own kernels. `launch_us`: the host's time for one call.
    Raises `ToolUnavailable` when no kernel ran.
    """
    launches = [
        Launch(time.name, {"duration_us": time.total_us / repeats}, calls=max(1, round(time.calls / repeats)))
        for time in times
        if time.calls
    ]
    return assemble(
        launches,
        rung=rung,
        workload=workload,
        why=why,
        authored=authored,
        launch_us=launch_us,
        artifacts=artifacts,
    )
