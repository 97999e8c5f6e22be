"""What each tool answers: one flat record a tool, small enough to be read in one go.

Each names the calls that are legal next. A metric is in the experiment's unit, named in `metric`.
"""

from __future__ import annotations

from typing import Literal

from kopt_mcp.certificate import Review
from kopt_mcp.evaluator.records import Status, Trust
from kopt_mcp.models import (
    ChangeKind,
    DecisionStatus,
    Described,
    Device,
    Ending,
    Evidence,
    Finding,
    Idea,
    Metric,
    Phase,
    Rung,
)


class WorkloadLine(Described):
    """One workload, in short."""

    workload: str
    status: Status
    detail: str = ""
    error_ratio: float | None = None
    """Largest error over what is allowed; up to 1 is right."""
    latency_us: float | None = None
    value: float | None = None
    """In the experiment's metric."""
    gain_pct: float | None = None
    """Against the best version, timed beside it."""


class StepResult(Described):
    """What every answer of a step holds."""

    experiment: str
    """The handle for every later call."""
    phase: Phase
    next: tuple[str, ...]
    """The tools that are legal now."""
    recovered: str = ""
    """What an interrupted call left behind, and how it was put right; empty as a rule."""
    trust: Trust = "measured"
    """`reported`: a test script judged and timed the kernel itself; its word was taken, and nothing is certified."""
    problem: Review = "unreviewed"
    """`tracked`: git has the test file as it is. `accepted`: a person has. `unreviewed`: nobody may have read it."""
    weaknesses: tuple[str, ...] = ()
    """Wrong implementations that the problem lets pass, which a person has accepted."""
    notes: tuple[str, ...] = ()


class DetectResult(Described):
    """The processors of this machine, the one first that `gpu: auto` takes."""

    processors: tuple[str, ...]
    """All of them, a line each: number, name, architecture, platform."""
    devices: tuple[Device, ...]
    """In full, as many as fit into an answer."""
    next: tuple[str, ...]


class BaselineResult(StepResult):
    """Iteration 0: the kernel is right, this fast, and this far from the target."""

    kernel: str
    test: str
    device: str
    arch: str
    metric: Metric
    baseline: float
    target: float
    target_source: str
    gap_pct: float
    """How much is missing to the target, in percent of it; 0 when it is already met."""
    roof: float | None
    """The metric at the device's measured limit; null where it was not measured."""
    noise_pct: float
    """What the kernel differed by when it was timed against itself."""
    least_gain_pct: float
    """A change must gain at least this much, beyond doubt, to be accepted."""
    max_iterations: int
    to_accept: str = ""
    """What a person can do about an unreviewed problem, with the line to write; tell the user."""
    mutants_caught: int
    workloads: tuple[WorkloadLine, ...]
    remembered: tuple[str, ...] = ()
    """What past experiments on such kernels gained and failed, a line each."""


class ProfileResult(StepResult):
    """What was seen when the kernel ran, from the best instrument that could be used here."""

    rung: Rung
    why: str
    """Why this instrument and not a better one."""
    workload: str
    metrics: dict[str, float | None]
    facts: dict[str, str]
    kernels: tuple[str, ...]
    """Device kernels with their share of the time, largest first."""
    artifacts: tuple[str, ...]


class DiagnoseResult(StepResult):
    """What limits the kernel, and what to try."""

    bound: str
    summary: str
    evidence: tuple[Evidence, ...]
    findings: tuple[Finding, ...]
    tiers: tuple[int, ...]
    """In the order to try them."""
    ideas: tuple[Idea, ...]
    """Those that this experiment has not tried."""
    read: tuple[str, ...]
    """Resources to read before the next patch."""
    headroom_pct: float | None
    stop: str
    source: str
    remembered: tuple[str, ...] = ()
    """What past experiments with such kernels or such a bound gained and failed, a line each."""


class PatchResult(StepResult):
    """The change is on disk, its predecessor is kept."""

    iteration: int
    iterations_left: int
    """After this one."""
    sha256: str
    parent: str
    added: int
    removed: int
    kinds: tuple[ChangeKind, ...]
    """What the change was read as; empty where nothing could be told."""
    snapshot: str
    """Where this version is kept, relative to the project."""


class VerifyResult(StepResult):
    """Whether the candidate is right; if it is not, it has been taken back already."""

    iteration: int
    status: Status
    correct: bool
    detail: str
    reverted: bool
    checks: int
    sanitizer: str = ""
    """What compute-sanitizer said, where it was asked for: passed, failed with a finding, or not run and why."""
    workloads: tuple[WorkloadLine, ...]
    """Those that failed, or all when none did."""


class BenchmarkResult(StepResult):
    """How fast the candidate is, timed in turns with the best version so far."""

    iteration: int
    status: Status
    detail: str
    metric: Metric
    value: float | None
    best: float
    target: float
    gain_pct: float | None
    gain_low_pct: float | None
    """Lower end of the 95 % interval; the decision rests on it."""
    gain_high_pct: float | None
    verdict: Literal["better", "same", "worse", "unusable"]
    reason: str
    reverted: bool
    certificate: str = ""
    """What stands behind the numbers, in short: method, calls, interval, hashes, device, versions, isolation, time."""
    workloads: tuple[WorkloadLine, ...]


class DecideResult(StepResult):
    """What became of the change, and whether the experiment is over."""

    iteration: int | None
    status: DecisionStatus | None
    reason: str
    metric: Metric
    value: float | None
    best: float
    best_iteration: int
    target: float
    gain_pct: float | None
    reverted: bool
    sha256: str
    """The kernel that is on disk now."""
    iterations_left: int
    ended: Ending | None
    confirmed: bool | None
    """Whether the final kernel passed once more in a cold process; null while the experiment goes on."""
    certificate: str = ""
    """What stands behind the numbers, in short; of the last, cold evaluation once the experiment is over."""
    summary: str = ""
    """The log's last line, once the experiment is over."""


class ExperimentLine(Described):
    """One experiment, in short."""

    experiment: str
    kernel: str
    device: str
    phase: Phase
    metric: Metric
    baseline: float
    best: float
    target: float
    iterations: int
    ended: Ending | None
    trust: Trust = "measured"


class LogResult(Described):
    """All that an agent needs to go on: the table, the state, what is legal, what is left to try."""

    experiments: tuple[ExperimentLine, ...] = ()
    experiment: str | None = None
    phase: Phase | None = None
    next: tuple[str, ...]
    kernel: str = ""
    test: str = ""
    device: str = ""
    metric: Metric | None = None
    baseline: float | None = None
    best: float | None = None
    best_iteration: int | None = None
    target: float | None = None
    iterations_left: int | None = None
    on_disk: str = ""
    """Whether the kernel file is the version that belongs there, and the problem as it was."""
    pending: str = ""
    """The open iteration: its hypothesis and how far it has come."""
    diagnosis: str = ""
    ideas: tuple[str, ...] = ()
    """`tier/idea` not yet tried."""
    tried: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    table: str = ""
    """The optimisation log, in Markdown."""
    certificate: str = ""
    """What stands behind the best version's number, in short."""
    trust: str = ""
    """`measured`, or `reported`: all figures are a test script's own."""
    problem: Review | None = None
    """Who stands for the problem: git (`tracked`), a person (`accepted`), or nobody (`unreviewed`)."""
    weaknesses: tuple[str, ...] = ()
    """Wrong implementations that the problem lets pass, which a person has accepted."""
    refusals: tuple[str, ...] = ()
    """The last few calls that were refused or failed since the last step."""
    damaged: tuple[str, ...] = ()
    """Experiments whose journal does not verify."""
    matches: tuple[str, ...] = ()
    """Iterations of all experiments that a query found."""
    document: str = ""
    """The text that `read` asked for."""
