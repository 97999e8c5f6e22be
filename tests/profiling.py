"""A ladder on a machine made for a test: a stub for ncu, recorded reports, candidates in a temporary folder."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes import FakeEvaluator, timing

from kopt_mcp.evaluator.records import Job, KernelTime, WorkloadInfo
from kopt_mcp.evaluator.target_job import ANSWER_FILE, JOB_FILE
from kopt_mcp.models import Device, Profile, StaticKernel
from kopt_mcp.platforms.host import Host, Ran
from kopt_mcp.platforms.launching import launch
from kopt_mcp.profiling import Ladder
from kopt_mcp.watch import Watch

DATA = Path(__file__).parent / "data" / "profilers"
H200 = Device(
    platform="nvidia",
    index=0,
    name="NVIDIA H200",
    arch="sm_90",
    uuid="GPU-1",
    sm_count=132,
    versions={"driver": "580.1"},
)
MI300X = Device(platform="amd", index=0, name="AMD Instinct MI300X", arch="gfx942", uuid="GPU-2", sm_count=304)
EPYC = Device(platform="cpu", index=0, name="AMD EPYC", arch="x86_64", uuid="CPU-1", sm_count=2)

PLAIN = "import torch\n\n\ndef softmax(x):\n    return torch.softmax(x, -1)\n"
TRITON = "import triton\n\n\n@triton.jit\ndef softmax_k(x):\n    pass\n\n\ndef softmax(x):\n    return x\n"

Answers = Callable[[dict[str, Any], Path], dict[str, Any]]


def compiled(**changes: Any) -> StaticKernel:
    """What the compiler might say of the kernel in the recorded ncu report."""
    known: dict[str, Any] = {
        "name": "softmax_k", "target": "sm_90", "registers": 40, "spills": 0, "shared_bytes": 32, "load_bytes": 8,
        "store_bytes": 8, "mma": None, "async_copy": "cp.async", "occupancy_pct": 75.0, "limiter": "registers",
        "grid": [32768, 1, 1], "block_threads": 256, "waves": 31.0,
    }  # fmt: skip
    return StaticKernel(**{**known, **changes})


class RecordedLaunch:
    """Starts nothing: writes what a program would have left in its folder, by the program's name."""

    def __init__(self, **programs: Callable[[Sequence[str], Path], Ran]) -> None:
        self.programs = programs
        self.calls: list[list[str]] = []
        self.jobs: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {"stage": "done", "host_us": 12.5, "entry": "softmax", "arguments": []}

    def __call__(self, argv: Sequence[str], *, folder: Path, timeout_s: float, watch: Watch) -> Ran:
        self.calls.append(list(argv))
        self.jobs.append(json.loads((folder / JOB_FILE).read_text()))
        (folder / ANSWER_FILE).write_text(json.dumps(self.answer))
        program = Path(argv[0]).name
        return self.programs[program](argv, folder) if program in self.programs else Ran(returncode=0)


@dataclass
class Machine:
    """Everything that a ladder is built from, in one temporary folder."""

    root: Path
    device: Device = H200
    kernel: str = PLAIN
    suffix: str = ".py"
    timeout_s: float = 60.0
    env: dict[str, str] = field(default_factory=dict)
    evaluator: FakeEvaluator = field(default_factory=FakeEvaluator)
    static: Any = None

    def __post_init__(self) -> None:
        self.bin = self.root / "bin"
        self.bin.mkdir(parents=True)
        self.problem = self.root / "test_softmax.py"
        self.problem.write_text("# declares a problem\n")
        self.candidate = self.root / f"candidate{self.suffix}"
        self.candidate.write_text(self.kernel)

    def install_ncu(self, mode: str) -> None:
        """Put the stub on the path; it behaves as `mode` names."""
        program = self.bin / "ncu"
        program.write_text(f"#!{sys.executable}\n{(DATA / 'ncu_stub.py').read_text()}")
        program.chmod(0o755)
        (self.bin / "data").write_text(str(DATA))
        (self.bin / "mode").write_text(mode)

    def install(self, *programs: str) -> None:
        """Put programs on the path that are never started, for a recorded launch."""
        for name in programs:
            (self.bin / name).write_text("#!/bin/sh\n")
            (self.bin / name).chmod(0o755)

    @property
    def ncu_runs(self) -> list[list[str]]:
        """The command lines with which the stub was asked to profile or to import."""
        calls = self.bin / "calls"
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    def host(self, run: Callable[..., Ran] | None = None) -> Host:
        # The root is the real one, so that the stub can be started; only our own folder is on the path.
        env = {"PATH": str(self.bin), **self.env}
        return Host(env=env, euid=0) if run is None else Host(run=run, env=env, euid=0)

    def ladder(self, started: Any = launch, host: Host | None = None) -> Ladder:
        return Ladder(
            self.evaluator,
            python=sys.executable,
            cache=self.root / "cache",
            host=host or self.host(),
            launch=started,
            static=self.static or (lambda kernel, **options: [compiled()]),
        )

    def job(self) -> Job:
        return Job(
            kind="benchmark",
            problem=str(self.problem),
            problem_sha256=digest(self.problem),
            candidate=str(self.candidate),
            candidate_sha256=digest(self.candidate),
            device="cpu" if self.device.platform == "cpu" else "cuda:0",
            timeout_s=self.timeout_s,
        )

    def profile(self, ladder: Ladder, depth: str = "quick", watch: Watch | None = None, name: str = "w") -> Profile:
        return ladder(
            device=self.device,
            job=self.job(),
            workload=WorkloadInfo(name, "float32", True, 1e8, 5e7),
            timing=timing(1000.0),
            depth=depth,
            artifacts=self.root / "profiles",
            watch=watch or Watch(),
        )


class NoTorchProfiler(FakeEvaluator):
    """An evaluator whose torch.profiler sees nothing."""

    def kernel_times(self, job: Job, workload: str, watch: Watch) -> list[KernelTime]:
        return []


class ShortKernels(FakeEvaluator):
    """An evaluator that saw 24 launches of two microseconds."""

    def kernel_times(self, job: Job, workload: str, watch: Watch) -> list[KernelTime]:
        return [KernelTime("step", 24, 48.0)]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
