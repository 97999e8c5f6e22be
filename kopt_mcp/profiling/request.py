"""What a rung of the ladder is asked, what it works with, and what all rungs share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt_mcp.errors import WorkspaceFailed
from kopt_mcp.evaluator.records import Job, Timing, WorkloadInfo
from kopt_mcp.evaluator.target_job import TargetJob
from kopt_mcp.models import Device, Profile, Rung
from kopt_mcp.platforms.host import Host
from kopt_mcp.platforms.launching import Launch
from kopt_mcp.platforms.reports import Launched, assemble
from kopt_mcp.profiling.access import CounterAccess
from kopt_mcp.watch import Watch


@dataclass(frozen=True)
class Tools:
    """What every rung works with."""

    python: Callable[[], str]
    """The user's interpreter, which runs what is profiled."""
    host: Host
    """Where profilers are looked for."""
    launch: Launch
    """Starts a profiler with the candidate under it."""
    access: CounterAccess


@dataclass(frozen=True)
class Request:
    """One workload of one candidate on one device."""

    device: Device
    job: Job
    workload: WorkloadInfo
    timing: Timing | None
    full: bool
    artifacts: Path
    """Where this profile's raw reports go; made when the first one is kept."""
    watch: Watch
    authored: frozenset[str] = frozenset()
    """Names of the kernels that the candidate's file defines."""

    @property
    def candidate(self) -> Path:
        """The kernel's file."""
        return Path(self.job.candidate)

    @property
    def native_on_cpu(self) -> bool:
        """Whether it is a C or C++ kernel for the CPU."""
        return self.device.platform == "cpu" and self.candidate.suffix != ".py"

    def target_job(self, **fields: Any) -> TargetJob:
        """The profile target's job for this candidate and workload."""
        return target_job(self.job, workload=self.workload.name, **fields)

    def profile(
        self,
        rung: Rung,
        launches: Sequence[Launched],
        why: str,
        facts: Mapping[str, str] | None = None,
        artifacts: Sequence[str] = (),
    ) -> Profile:
        """What a rung saw of the workload; see `assemble`."""
        return assemble(
            launches,
            rung=rung,
            workload=self.workload.name,
            why=why,
            authored=self.authored,
            facts=facts,
            artifacts=artifacts,
        )

    def keep(self, name: str, content: str | bytes) -> str:
        """Keep a raw report among the artifacts; returns its path.

        Raises:
            WorkspaceFailed: it cannot be written.
        """
        try:
            self.artifacts.mkdir(parents=True, exist_ok=True)
            file = self.artifacts / name
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        except OSError as error:
            raise WorkspaceFailed(f"{error.filename} cannot be written: {error.strerror}; make room there.") from error
        return str(file)


def target_job(job: Job, **fields: Any) -> TargetJob:
    """The profile target's job on the evaluator's; `fields` win."""
    shared = ("problem", "problem_sha256", "device", "candidate", "candidate_sha256", "timeout_s")
    return TargetJob(**{**{name: getattr(job, name) for name in shared}, **fields})


def artifacts_folder(root: Path, job: Job, workload: str, depth: str) -> Path:
    """One folder a version, workload and depth: a repeated profile replaces the one before."""
    slug = re.sub(r"[^\w.-]+", "_", workload)
    return root / f"{job.candidate_sha256[:12]}-{slug}-{depth}"


def from_timing(workload: str, timing: Timing | None, why: str) -> Profile:
    """The lowest rung: nothing but how long the kernel took, by the last benchmark."""
    duration = timing.latency_us if timing else None
    return Profile(
        rung="timing",
        why=why,
        workload=workload,
        kernels=[],
        metrics={"duration_us": duration, "launch_us": None},
        facts={"method": timing.method, "cache": timing.cache} if timing else {},
    )
