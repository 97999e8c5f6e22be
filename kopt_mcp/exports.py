"""Brings all that is written for people and for their tools up to date with an experiment's journal.

    experiments/README.md              the log, rendered by `optlog`
    experiments/index.json             every experiment in short, by its handle
    experiments/<handle>/results.tsv   one row a decided iteration, in the columns of AutoKernel's results.tsv

The columns are those that AutoKernel's analysis.py expects (github.com/RightNow-AI/autokernel, 2026-03-19). What we do
not measure, its speed-up over eager PyTorch and the memory peak, stays empty: never a zero.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kopt_mcp import optlog
from kopt_mcp.disk import Disk
from kopt_mcp.errors import WorkspaceFailed
from kopt_mcp.events import Measurement
from kopt_mcp.phases import Experiment, Iteration
from kopt_mcp.stats import geometric_mean

COLUMNS = (
    "experiment",
    "tag",
    "kernel_type",
    "throughput_tflops",
    "latency_us",
    "pct_peak",
    "speedup_vs_pytorch",
    "correctness",
    "peak_vram_mb",
    "description",
)
CORRECTNESS = {
    "PASSED": "PASS",
    "INCONCLUSIVE": "PASS",
    "TIMEOUT": "TIMEOUT",
    "COMPILE_ERROR": "CRASH",
    "RUNTIME_ERROR": "CRASH",
    "OUT_OF_MEMORY": "CRASH",
}
"""Its word for our status; any other of ours is `FAIL`."""


def write(experiments: Path, state: Experiment, disk: Disk, others: Iterable[Experiment] = ()) -> None:
    """Bring the log, the index and the experiment's table up to date; a file that is, is left alone.

    Args:
        others: all experiments, drawn from only when the index lacks one: it may be older than the index.

    Raises:
        WorkspaceFailed: one of them cannot be read or written.
    """
    optlog.write(experiments, state, disk)
    _replace(experiments / state.id / "results.tsv", tsv(state), disk)
    path = experiments / "index.json"
    known = {name: e for name, e in _load(path).items() if (experiments / name / "journal.jsonl").is_file()} | {
        state.id: entry(state)
    }
    if any(journal.parent.name not in known for journal in experiments.glob("*/journal.jsonl")):
        known = {other.id: entry(other) for other in others} | known
    _replace(path, indexed(known), disk)


def tsv(state: Experiment) -> str:
    """The decided iterations in AutoKernel's columns; times and rates are geometric means over the timed workloads."""
    out = io.StringIO()
    rows = csv.writer(out, delimiter="\t", lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerow(_cells(state, 0, "baseline", state.setup.measurement, "PASS", "baseline"))
    for i in _decided(state):
        measured = i.benchmark.measurement if i.benchmark else None
        tag = "reverted" if i.decision and i.decision.reverted else "kept"
        rows.writerow(_cells(state, i.patch.iteration, tag, measured, _correctness(i), i.patch.hypothesis))
    return out.getvalue()


def indexed(entries: Mapping[str, Any]) -> str:
    """The index of these entries, by handle."""
    return json.dumps({"format": 1, "experiments": dict(sorted(entries.items()))}, indent=1, ensure_ascii=False) + "\n"


def entry(state: Experiment) -> dict[str, Any]:
    """One experiment in short; a value is in the unit of `metric`."""
    setup = state.setup
    best = state.measured[state.best].value
    return {
        "problem": setup.problem.name,
        "kernel": setup.kernel,
        "test": setup.test,
        "device": setup.device.name,
        "arch": setup.device.arch,
        "began": datetime.fromtimestamp(setup.held[0], UTC).isoformat(timespec="seconds"),
        "metric": setup.target_metric,
        "baseline": setup.measurement.value,
        "best": best,
        "best_sha256": state.best,
        "target": setup.target_value,
        "roof": setup.roof,
        "pct_of_roof": round(100 * optlog.closeness(state, best), 2) if setup.roof else None,
        "iterations": len(_decided(state)),
        "ended": state.ended,
        "confirmed": state.confirmed,
        "trust": setup.trust,
        "journal": f"{state.id}/journal.jsonl",
    }


def _cells(
    state: Experiment, number: int, tag: str, measured: Measurement | None, correctness: str, description: str
) -> list[str]:
    believed = measured if correctness == "PASS" else None
    latency, rate = _means(state, believed) if believed else (None, None)
    share = optlog.closeness(state, believed.value) if believed else 0.0
    return [
        str(number),
        tag,
        state.setup.problem.name,
        f"{rate:.4f}" if rate else "",
        f"{latency:.2f}" if latency else "",
        f"{100 * share:.1f}" if share else "",
        "",
        correctness,
        "",
        _plain(description),
    ]


def _means(state: Experiment, measured: Measurement) -> tuple[float, float | None]:
    times = {name: timing.latency_us for name, timing in measured.timings.items()}
    flops = {w.name: w.flops for w in state.setup.problem.workloads if w.name in times}
    rates = [flops[name] / us / 1e6 for name, us in times.items() if flops.get(name, 0) > 0]
    return geometric_mean(list(times.values())), geometric_mean(rates) if len(rates) == len(times) else None


def _decided(state: Experiment) -> list[Iteration]:
    return [i for i in state.iterations if i.decision is not None]


def _correctness(iteration: Iteration) -> str:
    seen = [done.evaluation.status for done in (iteration.verify, iteration.benchmark) if done is not None]
    words = [CORRECTNESS.get(status, "FAIL") for status in seen]
    return next((word for word in words if word != "PASS"), "PASS" if words else "")


def _plain(text: str) -> str:
    """One line that no spreadsheet takes for a formula: what an agent writes is not to be run where a table is read."""
    line = optlog.visible(" ".join(text.split()))
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["experiments"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WorkspaceFailed(
            f"experiments/{path.name} cannot be read: {str(error)[:100]}; move it away, it is written anew."
        ) from error
    if not isinstance(found, dict):
        raise WorkspaceFailed(
            f"experiments/{path.name} holds no experiments by name; move it away, it is written anew."
        )
    return found


def _replace(path: Path, text: str, disk: Disk) -> None:
    new = text.encode(errors="replace")
    try:
        old = path.read_bytes() if path.exists() else None
    except OSError as error:
        raise WorkspaceFailed(f"{path.name} cannot be read: {error.strerror}; check its rights.") from error
    if new != old:
        disk.replace(path, new)
