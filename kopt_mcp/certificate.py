"""What stands behind a number: how it was measured, of what, on what, and under which conditions. Pure.

Whole in the journal beside the evaluation that it belongs to; in answers and logs only its short form.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from kopt_mcp import __version__
from kopt_mcp.evaluator.records import Evaluation, Ratio, Timing
from kopt_mcp.models import Described, Device

Review = Literal["tracked", "accepted", "unreviewed"]
"""Who stands for a problem: git, which has it as it is (`tracked`), a person (`accepted`), or nobody."""

SEEDS = "one public seed in verification, all others secret and drawn for each call"
SHORT_BYTES = 400
"""Longest short form."""
_HASH = 12
_SHOWN_VERSIONS = ("kopt-mcp", "python", "torch", "triton", "driver")


class Certificate(Described):
    """What stands behind one evaluation's numbers."""

    methods: tuple[str, ...]
    """How times were taken: `cuda_events`, `cupti`, `cuda_graph`, `wall`."""
    caches: tuple[str, ...]
    """`l2_cold` or `l2_warm`."""
    samples: int
    """Timed calls of the candidate, over all workloads."""
    blocks: int | None
    """Pairs of visits behind the interval; null where nothing was timed beside it."""
    ratio: float | None
    """Incumbent time / candidate time, geometric mean over workloads."""
    low: float | None
    """Lower end of the ratio's 95 % bootstrap interval over blocks."""
    high: float | None
    floor: float
    """|ratio - 1| seen when the baseline was timed against itself in the same experiment."""
    source_sha256: str
    incumbent_sha256: str | None
    binary_sha256: str | None
    """Of the machine code that was found once the candidate had been timed; null where there was none."""
    problem_sha256: str
    """Of the problem's file."""
    problem: Review
    weaknesses: tuple[str, ...]
    """Wrong implementations that the problem lets pass, accepted by a person."""
    device: str
    device_uuid: str
    neighbours: str
    """`visible`, or why it could not be seen who else used the device."""
    versions: dict[str, str]
    isolation: dict[str, str]
    """What kept the candidate in."""
    seeds: str
    time: str
    """When the evaluation ended, UTC."""

    def short(self) -> str:
        """What fits into an answer, on one line of at most `SHORT_BYTES` bytes."""
        parts = [self._measured(), self._hashes(), self.device_uuid, self._versions(), self._isolation(), self.time]
        text = "; ".join(part for part in parts if part)
        while len(text.encode()) > SHORT_BYTES:
            text = text[:-2] + "…"
        return text

    def _measured(self) -> str:
        how = " ".join((*self.methods, *self.caches)) or "not timed"
        ratio = f", {self.ratio:.4g}x [{self.low:.4g}, {self.high:.4g}]" if self.ratio is not None else ""
        return f"{how}, {self.samples} calls{ratio}, floor {100 * self.floor:.2g}%"

    def _hashes(self) -> str:
        binary = f", binary {self.binary_sha256[:_HASH]}" if self.binary_sha256 else ""
        weak = f", accepts {', '.join(self.weaknesses)}" if self.weaknesses else ""
        problem = f"problem {self.problem_sha256[:_HASH]} ({self.problem}{weak})"
        return f"kernel {self.source_sha256[:_HASH]}{binary}, {problem}"

    def _versions(self) -> str:
        return ", ".join(f"{name} {self.versions[name]}" for name in _SHOWN_VERSIONS if name in self.versions)

    def _isolation(self) -> str:
        on = [name for name, state in self.isolation.items() if not state.startswith("off")]
        off = [f"{name} OFF" for name, state in self.isolation.items() if state.startswith("off")]
        return f"isolated: {' '.join([*on, *off])}" if self.isolation else ""


def issue(
    evaluation: Evaluation,
    *,
    source_sha256: str,
    incumbent_sha256: str | None,
    problem_sha256: str,
    problem: Review,
    weaknesses: tuple[str, ...],
    device: Device,
    floor: float,
    at: float,
) -> Certificate:
    """The certificate of an evaluation that ended at `at`, seconds since the epoch."""
    timings = [r.timing for r in evaluation.workloads if r.timing is not None]
    ratio: Ratio | None = evaluation.ratio
    state = evaluation.device_state
    return Certificate(
        methods=_distinct(timings, "method"),
        caches=_distinct(timings, "cache"),
        samples=sum(t.samples for t in timings),
        blocks=ratio.blocks if ratio else None,
        ratio=ratio.value if ratio else None,
        low=ratio.low if ratio else None,
        high=ratio.high if ratio else None,
        floor=floor,
        source_sha256=source_sha256,
        incumbent_sha256=incumbent_sha256,
        binary_sha256=evaluation.binary_sha256,
        problem_sha256=problem_sha256,
        problem=problem,
        weaknesses=weaknesses,
        device=device.name,
        device_uuid=device.uuid,
        neighbours=(state.processes if state else "") or "not looked for",
        versions={"kopt-mcp": __version__, **device.versions, **evaluation.environment},
        isolation=evaluation.isolation,
        seeds=SEEDS,
        time=datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _distinct(timings: list[Timing], field: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(getattr(timing, field)) for timing in timings))
