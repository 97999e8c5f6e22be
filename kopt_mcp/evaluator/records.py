"""The records that cross between the server and the evaluator: standard library only.

The harness runs under the user's interpreter, where pydantic may be absent; the server validates these same classes
with `pydantic.TypeAdapter`. Times are in microseconds, sizes in bytes, ratios are incumbent time / candidate time, so
that above 1 the candidate is faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal[
    "PASSED",
    "INCORRECT_SHAPE",
    "INCORRECT_DTYPE",
    "INCORRECT_NUMERICAL",
    "COMPILE_ERROR",
    "RUNTIME_ERROR",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "CHEATED",
    "SUSPECT",
    "INVALID_PROBLEM",
    "DEVICE_BUSY",
    "DEVICE_UNHEALTHY",
    "INCONCLUSIVE",
]
"""How an evaluation ended. Only `PASSED` lets a candidate go on; "could not check" is never mapped to it."""

Method = Literal["cuda_events", "cupti", "cuda_graph", "wall", "reported"]
Cache = Literal["l2_cold", "l2_warm", "unknown"]
Trust = Literal["measured", "reported"]
"""`reported`: a test script judged and timed the kernel itself, and its word was taken; that certifies nothing."""
Bound = Literal["memory", "compute", "latency"]


RESOLUTION_US = 0.05
"""Shortest time that is ever reported: a call that does nothing takes this long, not zero or less. It stands for what
cannot be told from an empty call's time, and is no measured one."""


@dataclass(frozen=True)
class Timing:
    """Device time of one call (host time on a CPU)."""

    latency_us: float
    """Median."""
    p10_us: float
    p90_us: float
    samples: int
    method: Method
    cache: Cache
    warm_us: float | None = None
    """Median with the caches warm, for comparison only; never the headline."""


@dataclass(frozen=True)
class Ratio:
    """Incumbent time / candidate time with its 95 % bootstrap interval over blocks; above 1 the candidate is faster."""

    value: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True)
class WorkloadInfo:
    """One workload of a problem, as the server needs to know it."""

    name: str
    dtype: str
    timed: bool
    bytes: float
    """Bytes that any implementation must move: each input read once, each output written once."""
    flops: float
    certain: bool = True
    """False where a kernel may do with fewer bytes, so that no time is too short for them."""


@dataclass(frozen=True)
class ProblemInfo:
    """What a problem file declares for one device."""

    name: str
    entry: str
    bound: Bound
    workloads: tuple[WorkloadInfo, ...]
    files: dict[str, str] = field(default_factory=dict)
    """Files of the user's own that it was seen to import or read, by absolute path, each with its hash."""


@dataclass(frozen=True)
class Mutant:
    """A deliberately wrong implementation, and whether the problem's checks caught it."""

    name: str
    caught: bool
    why: str
    """What caught it, or why it passes and what to change."""


@dataclass(frozen=True)
class WorkloadResult:
    """One workload's verdict, and its times where it was timed."""

    workload: str
    status: Status
    detail: str = ""
    error_ratio: float | None = None
    """Largest |out - ref| / allowed over all checks of the workload: up to 1 is right."""
    checks: int = 0
    timing: Timing | None = None
    incumbent: Timing | None = None
    ratio: Ratio | None = None
    max_abs_error: float | None = None
    """Largest |out - ref| over all checks, of hard values too."""
    max_rel_error: float | None = None
    """Largest |out - ref| / (|ref| + 1e-8) over all checks."""


@dataclass(frozen=True)
class Reading:
    """What a GPU said of itself at one moment; None where it does not say."""

    when: Literal["before", "during", "after"]
    """`during`: between two blocks of timed calls, within a millisecond of the last one."""
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] = ()
    """Reasons for a lowered clock. Idling is not one."""


@dataclass(frozen=True)
class OtherProcess:
    """A process that is not ours and has a context on the device."""

    pid: int
    name: str
    memory_bytes: int | None
    utilisation_pct: int | None
    """Largest share of the device that it had while calls were timed; None where the driver does not say."""


@dataclass(frozen=True)
class DeviceState:
    """How the device was while calls were timed."""

    readings: tuple[Reading, ...] = ()
    """Of a GPU: right before, between the blocks, right after."""
    processes: str = ""
    """`visible`, or why it cannot be seen who else uses the device."""
    others: tuple[OtherProcess, ...] = ()
    load: float | None = None
    """Of a CPU: the system's load average over the last minute, ours included."""
    other_cores: float | None = None
    """Of a CPU: how many cores on average were busy with something else than this evaluation."""


@dataclass(frozen=True)
class Evaluation:
    """Status, correctness and timing of one candidate."""

    status: Status
    detail: str
    workloads: tuple[WorkloadResult, ...] = ()
    ratio: Ratio | None = None
    """Geometric mean over the timed workloads."""
    isolation: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    wall_s: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    """Seconds by part, the longest first. Parts of processes that work side by side add up to more than `wall_s`."""
    notes: tuple[str, ...] = ()
    """What a reader of the number should know: library calls found, a throttled clock, a weak spot of the problem."""
    trust: Trust = "measured"
    device_state: DeviceState | None = None
    """None where nothing was timed."""
    binary_sha256: str | None = None
    """Of the machine code that the candidate was compiled to; None where nothing was compiled that could be found."""


@dataclass(frozen=True)
class Ceilings:
    """What the device reached when it was measured, never a datasheet's figure."""

    copy_gbps: float
    """Large device-to-device copy, bytes read plus bytes written."""
    triad_gbps: float
    """a = b + s*c, three streams."""
    tflops: dict[str, float]
    """Square matrix product by dtype, random data."""
    measured_on: str
    """Device, library versions and date."""


@dataclass(frozen=True)
class KernelTime:
    """One device kernel that ran during a call of the candidate."""

    name: str
    calls: int
    total_us: float


@dataclass(frozen=True)
class TorchDevice:
    """A device as the user's torch sees it."""

    kind: Literal["cpu", "cuda", "hip"]
    index: int
    name: str
    arch: str
    memory_bytes: int
    sm_count: int
    l2_bytes: int
    uuid: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Job:
    """One request to the evaluator. Files are named with their SHA-256, and refused when they differ from it."""

    kind: Literal["verify", "benchmark", "confirm"]
    """`verify`: correctness only. `benchmark`: correctness of the timed calls, and times, beside the incumbent where
    one is given. `confirm`: both, for the final kernel, in fresh processes with cold caches."""
    problem: str
    problem_sha256: str
    candidate: str
    candidate_sha256: str
    device: str
    """`cpu` or `cuda:N`."""
    workloads: tuple[str, ...] | None = None
    """Names of the workloads to use; all of the device's when absent."""
    incumbent: str | None = None
    incumbent_sha256: str | None = None
    floor: float = 0.0
    """|ratio - 1| seen when this experiment's baseline was timed against itself; the accept rule rests on it."""
    timeout_s: float = 120.0
    """For each call of a candidate and for its compilation; one that hangs is `TIMEOUT`."""
