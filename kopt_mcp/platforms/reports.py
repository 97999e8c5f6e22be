"""What the reports of all profilers have in common: numbers, failures, whose a kernel is, and the way to a `Profile`.

Within a profile, `duration_us`, `dram_bytes` and `spill_bytes` of a kernel are totals over its calls in one call of
the candidate, so that they add up to the candidate's; every other metric is of the kernel's longest launch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kopt_mcp.errors import ToolUnavailable
from kopt_mcp.models import KernelProfile, Owner, Profile, Rung

ADDITIVE = ("duration_us", "dram_bytes", "spill_bytes")

# Searched in the bare name in lower case; a framework's name wins over a library's.
FRAMEWORK = re.compile(
    r"^at(en)?::|^torch::|at_cuda_detail|^c10::|^triton_(poi|red|per|tem|mm|for|spl)_|^thrust::|^cub::|^rocprim::|^hipcub::"
    r"|(^|::)(vectorized_|unrolled_)?elementwise_kernel|(^|::)reduce_kernel<|catarraybatched|^mem(cpy|set)\b|__amd_rocclr"
)
VENDOR = re.compile(
    r"cublas|cudnn|cutlass|cusparse|cufft|(ampere|volta|turing|hopper|maxwell)_\w*(gemm|conv|mma)|xmma_|^nvjet"
    r"|^gemv2|^gemmk1|splitkreduce|^cijk_|rocblas|hipblas|tensile|miopen|(^|::)ck::|ck_tile|^igemm_|^batched_transpose_"
    r"|^naive_conv|pytorch_flash|flash_(fwd|bwd)_\w*<|aiter::"
)
DECORATION = re.compile(r"\s*\[clone[^\]]*\]|\.kd$")


@dataclass(frozen=True)
class Failure:
    """Why a profiler gave nothing."""

    kind: str
    """`permission`, `no_kernels`, `wrong_process`, `busy`, `metric`, `version`, `target`, `hardware`, `resources`."""
    text: str
    """The profiler's own line."""
    remedy: str

    @property
    def words(self) -> str:
        """The profiler's line, then what to do."""
        return f"{self.text.rstrip('.')} ({self.kind}). {self.remedy}"


class FailureText(NamedTuple):
    """Pieces of a profiler's output that name a failure; matched without regard to case."""

    kind: str
    needles: tuple[str, ...]
    remedy: str


@dataclass(frozen=True)
class Launched:
    """One kernel's launch, or its calls taken together, under vendor-neutral metric names."""

    name: str
    metrics: Mapping[str, float | None]
    facts: Mapping[str, str] = field(default_factory=dict)
    calls: int = 1


def find_failure(output: str, table: Iterable[FailureText]) -> Failure | None:
    """The first entry of the table that occurs in the output, with the line it occurs in."""
    for entry in table:
        for needle in entry.needles:
            if found := re.search(f".*{re.escape(needle)}.*", output, re.IGNORECASE):
                return Failure(entry.kind, found[0].strip(), entry.remedy)
    return None


def number(text: str) -> float | None:
    """A cell as a number; None for `n/a`, blanks, words, NaN and infinities."""
    try:
        value = float(text.replace(",", "").removeprefix("(!)").strip())
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def ratio(part: float | None, whole: float | None, scale: float = 1.0) -> float | None:
    """`scale * part / whole`, or None where either was not measured or the whole is nothing."""
    return scale * part / whole if part is not None and whole else None


def total(*values: float | None) -> float | None:
    """The sum of what was measured; None when nothing was."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def bare_name(kernel: str) -> str:
    """A kernel's name without return type, arguments and loader decorations; template arguments stay."""
    name = DECORATION.sub("", kernel).removeprefix("void ").strip()
    return name.split("(", 1)[0] if not name.startswith("(") else name


def owner_of(kernel: str, authored: Collection[str] = ()) -> Owner:
    """Whose a kernel is: `authored` by the candidate, out of a `vendor` library, or the `framework`'s own.

    `authored`: names of the kernels that the candidate defines; they win over every pattern.
    """
    name = bare_name(kernel)
    if name in authored or name.split("<", 1)[0].rsplit("::", 1)[-1] in authored:
        return "authored"
    folded = name.lower()
    if FRAMEWORK.search(folded):
        return "framework"
    return "vendor" if VENDOR.search(folded) else "authored"


def assemble(
    launches: Sequence[Launched],
    *,
    rung: Rung,
    workload: str,
    why: str,
    authored: Collection[str] = (),
    facts: Mapping[str, str] | None = None,
    artifacts: Sequence[str] = (),
) -> Profile:
    """A profile of one call of the candidate: kernels by share of device time, metrics of the largest.

    `authored`: names of the candidate's own kernels. `facts` that are empty are left out.

    Raises:
        ToolUnavailable: there are no launches.
    """
    if not launches:
        raise ToolUnavailable(f"{rung}: no kernel was recorded. Check that the call launches one on this device.")
    grouped: dict[str, list[Launched]] = {}
    for launch in launches:
        grouped.setdefault(launch.name, []).append(launch)
    whole = sum(_duration(launch) for launch in launches)
    kernels = [_kernel(name, group, whole, authored) for name, group in grouped.items()]
    kernels.sort(key=lambda kernel: (-kernel.share_pct, kernel.name))
    top = max(grouped[kernels[0].name], key=_duration)
    return Profile(
        rung=rung,
        why=why,
        workload=workload,
        kernels=kernels,
        metrics=kernels[0].metrics,
        facts={name: text for name, text in {**top.facts, **(facts or {})}.items() if text},
        artifacts=list(artifacts),
    )


def _duration(launch: Launched) -> float:
    return launch.metrics.get("duration_us") or 0.0


def _kernel(name: str, group: Sequence[Launched], whole: float, authored: Collection[str]) -> KernelProfile:
    longest = max(group, key=_duration)
    sums = {key: total(*(launch.metrics.get(key) for launch in group)) for key in ADDITIVE if key in longest.metrics}
    return KernelProfile(
        name=name,
        owner=owner_of(name, authored),
        calls=sum(launch.calls for launch in group),
        share_pct=round(100 * sum(map(_duration, group)) / whole, 2) if whole else 0.0,
        metrics={**longest.metrics, **sums},
    )
