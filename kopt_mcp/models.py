"""Every record that crosses a boundary: between tools and agent, journal and loop, platform and diagnosis.

Records of the evaluator's border are standard-library dataclasses in `evaluator.records`, validated here by pydantic.
Units stand in the names: `_us` microseconds, `_bytes`, `_gbps` 1e9 bytes per second, `_tflops` 1e12 operations per
second, `_pct` percent. `None` means "not measured", never zero.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

Platform = Literal["nvidia", "amd", "cpu"]
Bound = Literal["memory", "compute", "latency", "balanced", "at_roof", "unclear"]
Rung = Literal["ncu", "rocprofv3", "rocprof", "cupti", "torch_profiler", "perf", "static", "timing"]
Owner = Literal["authored", "vendor", "framework"]


class Record(BaseModel):
    """Immutable, no unknown fields."""

    # Validators are built when they are first used: a server that is only listed by its client should start at once.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Described(Record):
    """A record that is part of a tool's schema: each field's docstring is its description there.

    As pydantic's `use_attribute_docstrings` does it, but when the schema is made and not when the module is imported:
    finding the source takes a millisecond for each class, and every start would pay for it.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in _field_docstrings(cls).items():
            properties.get(name, {}).setdefault("description", text)
        return schema


def _field_docstrings(cls: type) -> dict[str, str]:
    """The string below each annotated field of a class, its bases' included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not issubclass(base, Described) or base is Described:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


class Peak(Described):
    """One limit of a device and where the figure comes from."""

    value: float
    method: Literal["table", "computed", "measured"]
    source: str
    confidence: Literal["high", "medium", "low"]


class Profiler(Described):
    """A profiler on this machine, and whether it may be used."""

    name: str
    path: str | None
    version: str | None
    usable: bool
    remedy: str = ""
    """What to do when it is missing or not allowed."""


class Device(Described):
    """One processor that kernels can run on."""

    platform: Platform
    index: int
    """As torch counts them (after CUDA_VISIBLE_DEVICES); 0 for the CPU."""
    name: str
    arch: str
    """`sm_90`, `gfx942`, `x86_64`."""
    uuid: str
    memory_bytes: int | None = None
    sm_count: int | None = None
    """Streaming multiprocessors, compute units, or CPU cores."""
    l2_bytes: int | None = None
    l3_bytes: int | None = None
    """Last-level cache of a CPU, as one core sees it."""
    shared_bytes: int | None = None
    """Largest shared memory (LDS) of one block."""
    clock_mhz: int | None = None
    clock_max_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttle: list[str] = []
    """Active reasons for a lowered clock; empty when there are none or they cannot be read. Idling is not one."""
    partition: str | None = None
    """MIG profile, vGPU or AMD compute partition, when the device is a slice."""
    versions: dict[str, str] = {}
    """`driver`, `cuda` (of the toolkit, or of torch where that was asked), `cuda_driver` (the newest CUDA that the
    driver supports), `rocm`, `torch`, `triton`: what is there."""
    bandwidth_gbps: Peak | None = None
    """Nominal memory bandwidth; null when the device is not known, never a guess."""
    tflops: dict[str, Peak] = {}
    """Nominal dense peak by dtype (`fp32`, `tf32`, `fp16`, `bf16`, `fp8`, `int8`)."""
    measured_gbps: Peak | None = None
    """Copy bandwidth measured on this very device."""
    measured_tflops: dict[str, Peak] = {}
    profilers: list[Profiler] = []
    notes: list[str] = []


class StaticKernel(Record):
    """What the compiler says about one launched kernel, with no GPU."""

    name: str
    target: str
    registers: int | None
    spills: int | None
    """Spilled 4-byte words per thread."""
    shared_bytes: int | None
    load_bytes: int | None
    """Widest global load of one thread."""
    store_bytes: int | None
    mma: str | None
    """Matrix instruction family (`wgmma`, `mma.sync`, `tcgen05`, `mfma`, `wmma`), null when there is none."""
    async_copy: str | None
    """`tma`, `cp.async`, null."""
    occupancy_pct: float | None
    limiter: str | None
    grid: list[int]
    block_threads: int | None
    waves: float | None
    problems: list[str] = []
    """What cannot launch or is bound to be slow, in words."""
    config: dict[str, str] = {}
    """The autotuning config that was compiled, where there are several."""
    notes: list[str] = []
    """What a reader must know about where the numbers come from."""


class KernelProfile(Record):
    """One device kernel that the candidate launched."""

    name: str
    owner: Owner
    calls: int
    share_pct: float
    """Share of the candidate's device time."""
    metrics: dict[str, float | None] = {}


class Profile(Record):
    """What was seen when one workload of the candidate ran, under vendor-neutral metric names.

    Names used: `duration_us`, `dram_pct`, `dram_bytes`, `l2_pct`, `l1_pct`, `sm_pct` (busiest unit of the SM, as ncu's
    SOL), `tensor_pct`, `fma_pct`, `alu_pct`, `lsu_pct`, `xu_pct`, `fp64_pct`, `issue_pct`, `occupancy_pct`,
    `occupancy_theoretical_pct`, `waves`, `grid_blocks`, `block_threads`, `registers`, `spill_bytes`, `shared_bytes`,
    `l1_hit_pct`, `l2_hit_pct`, `bytes_per_sector_load`, `bytes_per_sector_store`, `bank_conflict_pct`,
    `stall_<reason>_pct`, `divergence_lanes`, `load_bytes`, `store_bytes`, `coalescing_pct` (AMD). Of the whole call:
    `launch_us` (host time), `latency_us` (the last benchmark's median). On a CPU: `cycles`, `instructions`, `ipc`,
    `cache_misses`, `branch_misses`, all of one call.
    """

    rung: Rung
    """Which step of the ladder produced it."""
    why: str
    """Why this rung and not a higher one."""
    workload: str
    kernels: list[KernelProfile]
    metrics: dict[str, float | None]
    """Of the kernel with the largest share."""
    facts: dict[str, str] = {}
    """Words rather than numbers: `occupancy_limiter`, `mma`, `tool_version`, `sm_clock_mhz`, `isolation` (how far the
    candidate was shut in), `static` (why the compiler says nothing), `vectorized` and `not_vectorized` (lines)."""
    artifacts: list[str] = []
    """Raw reports, relative to the project."""
    compiled: list[StaticKernel] = []
    """What the compiler says of the launched kernels; empty where it was not asked or did not answer in time."""


class Evidence(Described):
    """A number, what it was compared with, and where the threshold comes from."""

    metric: str
    value: float
    threshold: float
    source: str


class Finding(Described):
    """Something worth acting on besides the bound."""

    name: str
    text: str
    tier: int
    gain_pct: float | None = None
    """An upper estimate from the profiler's rule, where it has one."""


class Idea(Described):
    """A concrete thing to try."""

    id: str
    """Stable within its tier, e.g. `num-warps`."""
    tier: int
    text: str
    skill: str


class Diagnosis(Record):
    """Bound, evidence and what to try next. Deterministic in its inputs."""

    bound: Bound
    summary: str
    evidence: list[Evidence]
    findings: list[Finding]
    tiers: list[int]
    """In the order to try them."""
    ideas: list[Idea]
    read: list[str]
    """Resource URIs of the skills to read before the next patch."""
    headroom_pct: float | None
    """How much faster the kernel could be before it meets the measured roof; null where there is no roof."""
    stop: str = ""
    """Advice to stop, with its reason; empty while there is room."""
    source: str
    """`counters`, `static` or `analytic`: what the diagnosis rests on."""


class Doubts(Record):
    """What only a person can settle before a baseline."""

    unread: dict[str, str] = {}
    """Problem files that neither git nor a person stands for, with their hashes."""
    weaknesses: tuple[tuple[str, str], ...] = ()
    """Wrong kernels that an earlier call found the problem to let pass, and why it does."""


class Said(Record):
    """What a person answered to them."""

    problem: dict[str, str] = {}
    """Files accepted, with the hashes that were shown."""
    weaknesses: tuple[str, ...] = ()


class SanitizerRun(Record):
    """What one tool of compute-sanitizer said of a candidate."""

    tool: Literal["memcheck", "racecheck"]
    status: Literal["passed", "failed", "not run"]
    finding: str = ""
    """The first one."""
    place: str = ""
    """File and line of the finding, where the machine code holds them."""
    why: str = ""
    """Why it was not run, and what to do about it."""
    isolation: str = ""
    """How far the candidate was shut in."""

    def words(self) -> str:
        """The same in a line."""
        place = f" at {self.place}" if self.place else ""
        rest = self.why or (f"{self.finding}{place}" if self.finding else "")
        return f"{self.tool} {self.status}" + (f": {rest}" if rest else "")


Tool = Literal["detect_gpu", "baseline", "profile", "diagnose", "apply_patch", "verify", "benchmark", "decide", "log"]
Phase = Literal["new", "ready", "profiled", "diagnosed", "patched", "verified", "failed", "benchmarked", "done"]
ChangeKind = Literal["launch", "memory", "algorithm", "numerics", "scheduling", "arch"]
"""What a patch changes: launch parameters, memory access, algorithm or fusion, numerics, scheduling, features of one
architecture."""
Metric = Literal["gbps", "tflops", "latency_us"]
"""What an experiment is after; `latency_us` is better when lower, the others when higher."""

DecisionStatus = Literal["TARGET_MET", "IMPROVED", "NEUTRAL", "REGRESSED", "KEPT", "FAILED"]
Ending = Literal["TARGET_MET", "MAX_ITERATIONS", "TIERS_EXHAUSTED", "STOPPED"]
