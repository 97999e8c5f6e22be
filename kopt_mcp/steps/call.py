"""What a step may use, and the evaluations that it may ask for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from kopt_mcp import guards
from kopt_mcp.arguments import cut
from kopt_mcp.certificate import Certificate, issue
from kopt_mcp.errors import Cancelled, DeviceBusy, InputRefused, ProblemInvalid
from kopt_mcp.evaluator.client import Evaluator
from kopt_mcp.evaluator.records import Evaluation, Job, Timing, WorkloadInfo, WorkloadResult
from kopt_mcp.evaluator.script_run import RunScript
from kopt_mcp.events import BaselineData
from kopt_mcp.lock import Locks
from kopt_mcp.metrics import chosen, gain_pct, value
from kopt_mcp.models import Device, Diagnosis, Metric, Profile, SanitizerRun
from kopt_mcp.phases import Experiment
from kopt_mcp.results import WorkloadLine
from kopt_mcp.steps import provenance, task
from kopt_mcp.watch import Watch
from kopt_mcp.workspace import Candidates, Workspace

Kind = Literal["verify", "benchmark", "confirm"]
LINES = 12
"""Workloads that an answer lists; the journal has them all."""


class Profiler(Protocol):
    """How the loop asks for a profile; the platforms implement it."""

    def __call__(
        self,
        *,
        device: Device,
        job: Job,
        workload: WorkloadInfo,
        timing: Timing | None,
        depth: str,
        artifacts: Path,
        watch: Watch,
    ) -> Profile:
        """Run one workload of `job.candidate` under the best instrument that may be used.

        Args:
            timing: what the benchmark saw last, for the lowest rung of the ladder.
            depth: `quick` or `full`.
            artifacts: folder for raw reports; made by whoever writes there.
        """


class Sanitize(Protocol):
    """How the loop may have a candidate watched for accesses outside of memory; `profiling.Sanitizer` is one."""

    def __call__(
        self, *, device: Device, job: Job, workloads: Sequence[WorkloadInfo], watch: Watch
    ) -> tuple[SanitizerRun, ...]:
        """Run it; what cannot be run is `not run` and says why."""


@dataclass(frozen=True)
class Tools:
    """What the loop was built with."""

    workspace: Workspace
    evaluator: Evaluator
    detect: Callable[[], list[Device]]
    present: Callable[[], list[Device]]
    profile: Profiler | None
    diagnose: Callable[..., Diagnosis]
    locks: Locks
    clock: Callable[[], float]
    sanitize: Sanitize | None = None
    scripts: RunScript | None = None


@dataclass(frozen=True)
class Subject:
    """What every evaluation of an experiment has in common."""

    problem: Path
    problem_sha256: str
    device: Device
    workloads: tuple[str, ...] | None
    infos: tuple[WorkloadInfo, ...]
    floor: float = 0.0

    def job(self, kind: Kind, candidate: Path, sha256: str, incumbent: tuple[Path, str] | None = None) -> Job:
        """One request to the evaluator."""
        return Job(
            kind=kind,
            problem=str(self.problem),
            problem_sha256=self.problem_sha256,
            candidate=str(candidate),
            candidate_sha256=sha256,
            device=torch_name(self.device),
            workloads=self.workloads,
            incumbent=str(incumbent[0]) if incumbent else None,
            incumbent_sha256=incumbent[1] if incumbent else None,
            floor=self.floor,
        )


@dataclass
class Call:
    """One call of one tool on one experiment, past the guards."""

    tools: Tools
    state: Experiment
    candidates: Candidates
    facts: guards.Facts
    watch: Watch
    notes: list[str] = field(default_factory=list)

    def device(self) -> Device:
        """The experiment's device as it is now.

        Raises:
            GuardRefused: the machine does not show it.
        """
        found = {device.uuid: device for device in self.tools.present()}
        guards.check(dataclasses.replace(self.facts, devices=tuple(found)))
        then, now = self.state.setup.device, found[self.state.setup.device.uuid]
        # Its number may have changed with CUDA_VISIBLE_DEVICES; what was measured on it at the baseline has not.
        return then.model_copy(update={"index": now.index})

    def subject(self, device: Device) -> Subject:
        """What every evaluation of this experiment has in common."""
        setup = self.state.setup
        return Subject(
            problem=self.tools.workspace.root / setup.test,
            problem_sha256=setup.problem_files[setup.test],
            device=device,
            workloads=setup.workloads,
            infos=tuple(workloads(setup)),
            floor=setup.floor,
        )

    def evaluate(self, kind: Kind, sha256: str, incumbent: str | None = None) -> tuple[Evaluation, tuple[float, float]]:
        """Evaluate a version of the kernel; also says when the device was held.

        Raises:
            DeviceBusy, EvaluatorFailed, Cancelled, ToolUnavailable, ProblemInvalid, GuardRefused: nothing is known.
        """
        device = self.device()
        for version in filter(None, (sha256, incumbent)):
            self.candidates.load(version)  # refuses a snapshot that was tampered with
        beside = (self.candidates.path(incumbent), incumbent) if incumbent else None
        job = self.subject(device).job(kind, self.candidates.path(sha256), sha256, beside)
        with self.tools.locks.device(device.uuid, device.name, self.watch):
            begun = self.tools.clock()
            evaluation = evaluate(self.evaluator(), self.subject(device), job, self.watch)
            return evaluation, (begun, self.tools.clock())

    def evaluator(self) -> Evaluator:
        """Who judges and times the kernel of this experiment."""
        setup = self.state.setup
        root, tools = self.tools.workspace.root, self.tools
        return task.evaluator(
            tools.evaluator, tools.scripts, root, setup.kernel, setup.trust, setup.test, setup.problem_files
        )

    def sanitize(self, sha256: str) -> tuple[SanitizerRun, ...]:
        """What compute-sanitizer says of a version of the kernel.

        Raises:
            DeviceBusy, Cancelled, WorkspaceFailed, GuardRefused: nothing is known.
        """
        if self.state.setup.trust == "reported":
            return (SanitizerRun(tool="memcheck", status="not run", why="a script calls the kernel itself"),)
        if self.tools.sanitize is None:
            return (SanitizerRun(tool="memcheck", status="not run", why="this server was built without it"),)
        device = self.device()
        self.candidates.load(sha256)
        subject = self.subject(device)
        job = subject.job("verify", self.candidates.path(sha256), sha256)
        with self.tools.locks.device(device.uuid, device.name, self.watch):
            return self.tools.sanitize(device=device, job=job, workloads=subject.infos, watch=self.watch)

    def certificate(
        self, evaluation: Evaluation, sha256: str, incumbent: str | None, held: tuple[float, float]
    ) -> Certificate | None:
        """What stands behind an evaluation of this experiment; None behind figures that were only reported."""
        setup = self.state.setup
        if evaluation.trust == "reported":
            return None
        return issue(
            evaluation,
            source_sha256=sha256,
            incumbent_sha256=incumbent,
            problem_sha256=setup.problem_files[setup.test],
            problem=provenance.standing(self.tools.workspace, setup),
            weaknesses=setup.weaknesses,
            device=setup.device,
            floor=setup.floor,
            at=held[1],
        )

    def put(self, sha256: str) -> None:
        """Make a version the kernel on disk, before the journal says so: a crash in between undoes it."""
        if self.tools.workspace.hash(self.state.setup.kernel) != sha256:
            self.tools.workspace.replace(self.state.setup.kernel, self.candidates.load(sha256))


def workloads(setup: BaselineData) -> list[WorkloadInfo]:
    """The workloads of an experiment."""
    return chosen(setup.problem, setup.workloads)


def torch_name(device: Device) -> str:
    """How the user's torch names a device; HIP devices are `cuda` there too."""
    return "cpu" if device.platform == "cpu" else f"cuda:{device.index}"


def evaluate(evaluator: Evaluator, subject: Subject, job: Job, watch: Watch) -> Evaluation:
    """Ask the evaluator, and take from its answer only what it can bear.

    Raises:
        DeviceBusy, ProblemInvalid, Cancelled: the answer says nothing about the candidate.
    """
    evaluation = evaluator.evaluate(job, watch)
    if watch.cancelled:
        raise Cancelled("the call was cancelled; the experiment is where it was; call again to go on.")
    if evaluation.status in ("DEVICE_BUSY", "DEVICE_UNHEALTHY"):
        raise DeviceBusy(
            f"{subject.device.name} is not usable ({evaluation.status}): {evaluation.detail}; nothing is said of the "
            "candidate; call again when the device is free and well."
        )
    if evaluation.status == "INVALID_PROBLEM":
        raise ProblemInvalid(
            f"the problem cannot be used: {evaluation.detail}; the kernel was not judged; call baseline."
        )
    return _sound(evaluation, subject, job.kind)


def _sound(evaluation: Evaluation, subject: Subject, kind: Kind) -> Evaluation:
    """A pass is believed only if every workload is in it, passed, was timed where it should be, and within physics."""
    if evaluation.status not in ("PASSED", "INCONCLUSIVE"):
        return evaluation
    found = {r.workload: r for r in evaluation.workloads}
    for info in subject.infos:
        result = found.get(info.name)
        if result is None or (info.timed and kind != "verify" and result.timing is None):
            if result is None and kind == "benchmark" and not info.timed:
                continue
            lacks = "was not checked" if result is None else "was not timed"
            return dataclasses.replace(evaluation, status="INCONCLUSIVE", detail=f"workload {info.name!r} {lacks}")
        if result.status not in ("PASSED", "INCONCLUSIVE"):
            return dataclasses.replace(evaluation, status=result.status, detail=result.detail or evaluation.detail)
        if result.timing is not None and _beyond(info, result.timing, subject.device):
            return dataclasses.replace(evaluation, status="SUSPECT", detail=_impossible(info, result.timing))
    return evaluation


def _beyond(info: WorkloadInfo, timing: Timing, device: Device) -> bool:
    peaks = [p.value for p in (device.bandwidth_gbps, device.measured_gbps) if p is not None]
    too_fast = guards.too_fast(info.bytes, timing.latency_us, max(peaks, default=None), device.l2_bytes)
    return timing.latency_us <= 0 or (info.certain and too_fast)


def _impossible(info: WorkloadInfo, timing: Timing) -> str:
    return (
        f"workload {info.name!r} took {timing.latency_us:.4g} us, less than its {info.bytes:.4g} bytes take at the "
        "memory's bandwidth; the work was not done"
    )


def lines(
    metric: Metric, infos: Sequence[WorkloadInfo], results: Sequence[WorkloadResult], said: str = ""
) -> tuple[WorkloadLine, ...]:
    """Workloads for an answer: those that failed first, no more than can be read.

    Args:
        said: what the answer says anyway, and no line need say again.
    """
    known = {w.name: w for w in infos}
    ordered = sorted(results, key=lambda r: r.status == "PASSED")
    return tuple(
        WorkloadLine(
            workload=r.workload,
            status=r.status,
            detail=cut(r.detail, 200) if r.detail != said else "",
            error_ratio=rounded(r.error_ratio),
            latency_us=rounded(r.timing.latency_us) if r.timing else None,
            value=rounded(value(metric, known[r.workload], r.timing.latency_us))
            if r.timing and r.timing.latency_us > 0 and r.workload in known
            else None,
            gain_pct=rounded(gain_pct(r)),
        )
        for r in ordered[:LINES]
    )


def few(notes: Sequence[str]) -> tuple[str, ...]:
    """Notes for an answer, no more than can be read."""
    return tuple(cut(note, 300) for note in notes[:6])


def rounded(number: float | None) -> float | None:
    """Five digits: more would only pretend. Infinite and undefined ones are left out, JSON has no word for them."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.5g}")


def sentence(text: str | None, name: str, longest: int) -> str | None:
    """A reason or hypothesis from the agent, on one line.

    Raises:
        InputRefused: it is empty or too long.
    """
    if text is None:
        return None
    one_line = " ".join(text.split())
    if not one_line or len(one_line) > longest:
        what = "empty" if not one_line else f"{len(one_line)} characters long"
        raise InputRefused(f"{name} is {what}; it goes into the log as one sentence; give 1 to {longest} characters.")
    return one_line
