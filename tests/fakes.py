"""Stand-ins at the loop's declared seams: an evaluator that reads its verdict off the kernel, and one device.

A test's kernel says itself how it behaves, in constants that the fake reads and never runs:

    SPEED = 1.2                      times faster than the first kernel
    VERIFY = "INCORRECT_NUMERICAL"   status of each kind of job, PASSED when absent
    BENCHMARK = "CHEATED"
    CONFIRM = "TIMEOUT"
    COLD = 0.9                       speed in the confirmation, where it differs
"""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kopt_mcp.disk import Disk
from kopt_mcp.evaluator.records import (
    Ceilings,
    Evaluation,
    Job,
    KernelTime,
    Mutant,
    ProblemInfo,
    Ratio,
    Timing,
    TorchDevice,
    WorkloadInfo,
    WorkloadResult,
)
from kopt_mcp.lock import Locks
from kopt_mcp.loop import Loop
from kopt_mcp.models import Device, Diagnosis, Idea
from kopt_mcp.results import BaselineResult, DecideResult
from kopt_mcp.watch import Watch

START_US = 1000.0
BYTES = 1e8  # 100 GB/s at the start
NOISE = 0.002

GPU = Device(
    platform="nvidia", index=0, name="NVIDIA H200", arch="sm_90", uuid="GPU-1", memory_bytes=1 << 37, l2_bytes=60 << 20
)
CPU = Device(platform="cpu", index=0, name="Some CPU", arch="x86_64", uuid="CPU-1", memory_bytes=1 << 34)

WORKLOADS = (
    WorkloadInfo(name="4096x4096-fp32", dtype="float32", timed=True, bytes=BYTES, flops=5e7),
    WorkloadInfo(name="127x1000-fp32", dtype="float32", timed=False, bytes=1e6, flops=5e5),
)
PROBLEM = ProblemInfo(name="softmax", entry="softmax", bound="memory", workloads=WORKLOADS)


def kernel(speed: float = 1.0, body: str = "return x", **constants: Any) -> str:
    """A kernel's text that behaves as told."""
    lines = [f"SPEED = {speed!r}", *(f"{name} = {value!r}" for name, value in constants.items())]
    return "\n".join([*lines, "", "", "def softmax(x):", f"    {body}", ""])


class FakeEvaluator:
    """Answers at once, from the kernel's own constants."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.problem = PROBLEM
        self.ratio_of_itself = 1.001
        self.mutants = [Mutant(name="zeros", caught=True, why="differs everywhere")]
        self.before: Callable[[Job, Watch], None] = lambda job, watch: None
        self.spoil: Callable[[Evaluation], Evaluation] = lambda evaluation: evaluation

    def torch_device(self, device: str) -> TorchDevice:
        kind = "cpu" if device == "cpu" else "cuda"
        return TorchDevice(kind, 0, device, "sm_90", 1 << 37, 132, 60 << 20, "GPU-1", {"torch": "2.99"})

    def describe(self, problem: Path, sha256: str, device: str) -> ProblemInfo:
        assert hashlib.sha256(problem.read_bytes()).hexdigest() == sha256
        return self.problem

    def ceilings(self, device: str, watch: Watch) -> Ceilings:
        return Ceilings(copy_gbps=1000.0, triad_gbps=1000.0, tflops={"fp32": 10.0}, measured_on="a fake")

    def check_problem(self, problem: Path, sha256: str, device: str, watch: Watch) -> list[Mutant]:
        return self.mutants

    def evaluate(self, job: Job, watch: Watch) -> Evaluation:
        self.jobs.append(job)
        self.before(job, watch)
        wanted = _constants(job.candidate, job.candidate_sha256)
        status = wanted.get(job.kind.upper(), "PASSED" if "SPEED" in wanted else "COMPILE_ERROR")
        if status not in ("PASSED", "INCONCLUSIVE"):
            failed = tuple(WorkloadResult(w.name, status, "off by 3", 7.0, 1) for w in self._infos(job))
            return Evaluation(status, f"the kernel says {status}", failed)
        return self.spoil(self._times(job, wanted, status))

    def kernel_times(self, job: Job, workload: str, watch: Watch) -> list[KernelTime]:
        return [KernelTime("softmax_kernel", 1, START_US)]

    def _infos(self, job: Job) -> list[WorkloadInfo]:
        return [w for w in self.problem.workloads if job.workloads is None or w.name in job.workloads]

    def _times(self, job: Job, wanted: dict[str, Any], status: Any) -> Evaluation:
        speed = wanted["SPEED"] if job.kind != "confirm" else wanted.get("COLD", wanted["SPEED"])
        ratio = incumbent = None
        if job.incumbent is not None:
            assert job.incumbent_sha256 is not None
            other = _constants(job.incumbent, job.incumbent_sha256)["SPEED"]
            same = job.incumbent_sha256 == job.candidate_sha256
            value = self.ratio_of_itself if same else speed / other
            ratio = Ratio(value, value - NOISE, value + NOISE, 20)
            incumbent = timing(START_US / other)
        results = tuple(
            WorkloadResult(w.name, "PASSED", "", 0.1, 7, timing(START_US / speed), incumbent, ratio)
            if w.timed and job.kind != "verify"
            else WorkloadResult(w.name, "PASSED", "", 0.1, 7)
            for w in self._infos(job)
        )
        return Evaluation(status, "", results, ratio)


def timing(latency_us: float) -> Timing:
    """A time with a little spread."""
    return Timing(latency_us, latency_us * 0.99, latency_us * 1.02, 200, "cuda_events", "l2_cold")


def diagnose(profile: Any, device: Any, **rest: Any) -> Diagnosis:
    """A diagnosis that offers three ideas, those that were tried left out."""
    ideas = [Idea(id=f"idea-{n}", tier=n, text=f"try {n}", skill="skill://x") for n in (1, 2, 3)]
    left = [idea for idea in ideas if (idea.tier, idea.id) not in rest["tried"]]
    return Diagnosis(
        bound="memory", summary="memory-bound", evidence=[], findings=[], tiers=[1, 2, 3], ideas=left,
        read=["skill://x"], headroom_pct=50.0, source="analytic",
    )  # fmt: skip


class WatchedDisk(Disk):
    """Says what it is about to do, and writes in two halves; without the waits for the platters."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self._before = before

    def _write(self, fd: int, data: bytes) -> None:
        self._before("write")
        super()._write(fd, data[: len(data) // 2])
        self._before("write the second half")
        super()._write(fd, data[len(data) // 2 :])

    def _sync(self, fd: int) -> None:
        self._before("sync")

    def _sync_folder(self, path: Path) -> None:
        self._before("sync folder")

    def _truncate(self, fd: int, size: int) -> None:
        self._before("truncate")
        super()._truncate(fd, size)

    def _chmod(self, fd: int, mode: int) -> None:
        self._before("chmod")
        super()._chmod(fd, mode)

    def _rename(self, source: Path, target: Path) -> None:
        self._before("rename")
        super()._rename(source, target)

    def _mkdir(self, path: Path) -> None:
        self._before("mkdir")
        super()._mkdir(path)

    def _remove(self, path: Path) -> None:
        self._before("remove")
        super()._remove(path)


def ticking(start: float = 1_800_000_000.0) -> Callable[[], float]:
    """A clock that moves a second each time it is read."""
    count = itertools.count()
    return lambda: start + next(count)


@dataclass
class Project:
    """A folder, a loop on it, and shortcuts for what most tests do."""

    root: Path
    evaluator: FakeEvaluator = field(default_factory=FakeEvaluator)
    devices: list[Device] = field(default_factory=lambda: [GPU, CPU])
    disk: Disk = field(default_factory=Disk)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.kernel.write_text(kernel())
        (self.root / "test_softmax.py").write_text("# declares a problem\n")
        self.loop = self.reopened()

    @property
    def kernel(self) -> Path:
        return self.root / "softmax.py"

    @property
    def text(self) -> str:
        return self.kernel.read_text()

    def reopened(self, **changed: Any) -> Loop:
        """A new loop on the same folder, as another server would have it."""
        folder = self.root.parent / "locks"
        folder.mkdir(exist_ok=True)
        parts: dict[str, Any] = {
            "evaluator": self.evaluator,
            "detect": lambda: self.devices,
            "diagnose": diagnose,
            "clock": ticking(),
            "locks": Locks(folder, bound_s=1.0, monotonic=ticking(), sleep=lambda seconds: None),
            "disk": self.disk,
        }
        return Loop(self.root, **{**parts, **changed})

    def baseline(self, **arguments: Any) -> BaselineResult:
        return self.loop.baseline("softmax.py", **{"target_metric": "gbps", "target_value": 500, **arguments})

    def diagnosed(self, **arguments: Any) -> str:
        """An experiment that is ready for a patch; returns its handle."""
        name = self.baseline(**arguments).experiment
        self.loop.diagnose(name)
        return name

    def patch(self, name: str, text: str, hypothesis: str = "it is faster", tier: int = 1, **rest: Any) -> None:
        self.loop.apply_patch(name, tier, hypothesis, content=text, **rest)

    def iterate(self, name: str, text: str, *, keep_reason: str | None = None, **rest: Any) -> DecideResult:
        """One whole iteration, from the diagnosis where one is missing to the decision."""
        if "diagnose" in self.loop.log(name).next:
            self.loop.diagnose(name)
        self.patch(name, text, **rest)
        if self.loop.verify(name).correct:
            self.loop.benchmark(name)
        return self.loop.decide(name, keep_reason)


def _constants(path: str, sha256: str) -> dict[str, Any]:
    data = Path(path).read_bytes()
    assert hashlib.sha256(data).hexdigest() == sha256, f"{path} is not the version that the job names"
    try:
        tree = ast.parse(data.decode("utf-8-sig"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # then it says nothing, as C does
        return {}
    assigned = [n for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)]
    return {n.targets[0].id: n.value.value for n in assigned if isinstance(n.targets[0], ast.Name)}  # type: ignore[attr-defined]
