"""What a journal line may hold: one record for each step that succeeded, and one for each that did not.

These records are read back from journals of earlier releases: a new field needs a default, and no field is renamed.
Paths are relative to the project, hashes are SHA-256 in hex, times of day are seconds since the epoch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from kopt_mcp.certificate import Certificate
from kopt_mcp.evaluator.records import Evaluation, ProblemInfo, Ratio, Timing, Trust
from kopt_mcp.models import (
    ChangeKind,
    DecisionStatus,
    Device,
    Diagnosis,
    Ending,
    Metric,
    Profile,
    Record,
    SanitizerRun,
    Tool,
)


class Event(Record):
    """One line of a journal."""

    # Infinity and NaN are written as such: null would not come back as a number.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    n: int
    """Counts from 0 without a gap; the order of events, whatever the clock says."""
    time: str
    """Wall clock, UTC."""
    tool: Tool
    outcome: Literal["ok", "refused", "failed"]
    """`refused`: a rule forbade it. `failed`: something else broke. Neither changes the experiment's state."""
    data: dict[str, Any]
    prev: str
    """Hash of the line before, without its newline; empty in the first."""


class Measurement(Record):
    """How fast one version of the kernel was, from the benchmark that judged it."""

    value: float
    """In the experiment's metric: the geometric mean over its timed workloads."""
    timings: dict[str, Timing]
    """By workload."""


class BaselineData(Record):
    """Iteration 0: what the experiment is about, and what everything later is held against."""

    format: Literal[1] = 1
    kernel: str
    test: str
    sha256: str
    normal: str | None
    """Hash of the program without comments, docstrings and formatting; null in early journals of other languages."""
    shape: str | None = None
    """The same, whatever its variables are called."""
    problem_files: dict[str, str]
    """The test file, the project's own modules that it imports, and the data that it reads, with their hashes."""
    task: str = "problem"
    """The format of what the user has: our own, or that of a task for which `test` was written by us."""
    trust: Trust = "measured"
    """`reported`: a script judges and times the kernel itself."""
    problem_review: Literal["reviewed", "tracked", "accepted", "unreviewed"]
    """`tracked` (in early journals `reviewed`): git has the problem's files as they are. `accepted`: a person did."""
    accepted_by: Literal["", "kopt.yaml", "elicitation", "earlier"] = ""
    """How a person accepted the problem; `earlier`: for another experiment, whose journal says how."""
    problem: ProblemInfo
    workloads: tuple[str, ...] | None = None
    """The workloads that were asked for; all of the device's when null."""
    device: Device
    target_metric: Metric
    target_value: float
    target_source: str
    roof: float | None
    """The metric at the device's measured roof."""
    max_iterations: int
    floor: float
    """|ratio - 1| seen when the kernel was timed against itself."""
    measurement: Measurement
    mutants: int = 0
    """Wrong implementations that the problem's checks caught."""
    weaknesses: tuple[str, ...] = ()
    """Wrong implementations that they do not catch, accepted in kopt.yaml."""
    evaluation: Evaluation
    certificate: Certificate | None = None
    """Null in early journals."""
    held: tuple[float, float]
    """When the device lock was held."""


class ProfileData(Record):
    """A profile of the kernel as it stands."""

    sha256: str
    profile: Profile
    held: tuple[float, float] | None = None
    """When the device lock was held; null where the profile needed no device."""


class DiagnoseData(Record):
    """A diagnosis of the kernel as it stands."""

    sha256: str
    diagnosis: Diagnosis


class PatchData(Record):
    """The one change of an iteration. Written before the kernel file is replaced, so that a crash can be completed."""

    iteration: int
    tier: int
    hypothesis: str
    idea: str | None = None
    because: str | None = None
    way: Literal["edits", "diff", "content", "working_copy"]
    parent: str
    sha256: str
    normal: str | None
    shape: str | None = None
    kinds: tuple[ChangeKind, ...] = ()
    """What it was read as; empty where nothing could be told."""
    copied: str = ""
    """The experiment whose version this is, whole."""
    added: int
    removed: int


class VerifyData(Record):
    """Whether the candidate is right."""

    sha256: str
    evaluation: Evaluation
    sanitizer: tuple[SanitizerRun, ...] = ()
    """What compute-sanitizer said, where it was asked for."""
    held: tuple[float, float]


class BenchmarkData(Record):
    """How fast the candidate is beside the best version so far."""

    sha256: str
    incumbent: str
    evaluation: Evaluation
    measurement: Measurement | None
    """Null when a timed workload came back without a time."""
    certificate: Certificate | None = None
    """Null in early journals."""
    held: tuple[float, float]


class Confirmation(Record):
    """One more evaluation of a kernel in a cold process, before anything final is said of it."""

    sha256: str
    evaluation: Evaluation
    value: float | None
    """The metric as measured there."""
    certificate: Certificate | None = None
    """Null in early journals."""
    held: tuple[float, float]


class DecideData(Record):
    """What became of an iteration, and of the experiment."""

    iteration: int | None
    """Null when the experiment was stopped between iterations."""
    status: DecisionStatus | None
    reason: str
    ratio: Ratio | None = None
    reverted: bool
    sha256: str
    """The kernel on disk from here on."""
    base: str
    """What a later revert returns to: the best, or a kept step while it may still pay."""
    best: str
    kept_since: int | None = None
    """The iteration whose step is kept on trial."""
    ended: Ending | None = None
    confirmations: tuple[Confirmation, ...] = ()
    confirmed: bool | None = None
    """Whether the final kernel passed in a cold process; null while the experiment goes on."""


class RefusalData(Record):
    """A call that did not happen."""

    kind: str
    """Class of the error."""
    text: str
