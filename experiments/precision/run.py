"""How often is an unchanged kernel called faster, and how often is a small real gain found?

    python experiments/precision/run.py --device cuda:0 --same 200 --planted 60 --out OUT

Each evaluation is a whole one, in fresh processes, as `benchmark` makes it. A kernel against itself must not be
accepted; a kernel with 2 % (on a CPU 10 %) fewer steps must be. Beside it, in the same run, the rules of thumb that
loops use: `do_bench` means, "current > best" and "at least 1 %". Appends to OUT/samples.jsonl, so that several short
runs add up, and writes OUT/table.md from all of it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from busy import Busy  # noqa: E402

from kopt_mcp import stats  # noqa: E402
from kopt_mcp.evaluator.client import LocalEvaluator, Watch  # noqa: E402
from kopt_mcp.evaluator.records import Evaluation, Job  # noqa: E402

HERE = Path(__file__).resolve().parent
SOFTMAX = ROOT / "skills" / "kernels" / "softmax"
SIZES = ("4096x4096-fp32", "128x1024-bf16", "32768x4096-bf16")
CPU_SOFTMAX = ROOT / "examples" / "cpu_softmax"
CPU_SIZES = ("1000x781-fp32",)
GAIN = {"cuda": 1.02, "cpu": 1.10}


def job(device: str, problem: Path, candidate: Path, incumbent: Path, workloads: tuple[str, ...] | None) -> Job:
    """A benchmark of one file against another."""
    digests = [sha256(p.read_bytes()).hexdigest() for p in (problem, candidate, incumbent)]
    return Job(
        "benchmark",
        str(problem),
        digests[0],
        str(candidate),
        digests[1],
        device,
        workloads,
        incumbent=str(incumbent),
        incumbent_sha256=digests[2],
    )


def rows(
    kind: str, evaluation: Evaluation, floors: dict[str, float], seconds: float, busy_s: float | None
) -> Iterator[dict[str, Any]]:
    """What the accept rule says of each workload by itself; the seconds are those of all of them."""
    for result in evaluation.workloads:
        if result.ratio is None or result.timing is None:
            continue
        floor = floors.setdefault(result.workload, abs(result.ratio.value - 1) if kind == "same" else 0.0)
        verdict, _ = stats.verdict(result.ratio.low, result.ratio.high, floor)
        yield {
            "kind": kind,
            "workload": result.workload,
            "ratio": round(result.ratio.value, 5),
            "low": round(result.ratio.low, 5),
            "high": round(result.ratio.high, 5),
            "us": round(result.timing.latency_us, 3),
            "blocks": result.ratio.blocks,
            "samples": result.timing.samples,
            "accepted": verdict == "better",
            "seconds": round(seconds, 2),
            "gpu_s": None if busy_s is None else round(busy_s, 2),
            "notes": list(evaluation.notes),
        }


def planted_pair(kind: str, folder: Path) -> tuple[Path, Path]:
    """Two versions of the chain, the candidate with fewer steps; (candidate, incumbent)."""
    source = HERE / ("planted.py" if kind == "cuda" else "planted.c")
    text = source.read_text(encoding="utf-8")
    old, steps = ("STEPS = 2000", 2000) if kind == "cuda" else ("#define STEPS 40", 40)
    more = round(steps * GAIN[kind])
    slower = folder / f"slower{source.suffix}"
    slower.write_text(text.replace(old, old.replace(str(steps), str(more))), encoding="utf-8")
    faster = folder / f"faster{source.suffix}"
    faster.write_text(text, encoding="utf-8")
    return faster, slower


def naive(count: int) -> Iterator[dict[str, Any]]:
    """What `triton.testing.do_bench` means say of an unchanged softmax, in this process."""
    import importlib.util

    import torch
    from triton.testing import do_bench

    spec = importlib.util.spec_from_file_location("template", SOFTMAX / "triton_template.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for size in SIZES:
        shape, dtype = size.rsplit("-", 1)
        rows_, cols = map(int, shape.split("x"))
        x = torch.randn(rows_, cols, device="cuda", dtype=torch.float32 if dtype == "fp32" else torch.bfloat16)
        times = [
            do_bench(lambda x=x: module.softmax(x), warmup=10, rep=40, return_mode="mean") for _ in range(count + 1)
        ]
        for before, after in pairwise(times):
            yield {"kind": "naive", "workload": size, "ratio": round(before / after, 5)}


def measure(options: argparse.Namespace, write: Any) -> dict[str, str]:
    """All evaluations of this run; the environment they ran in."""
    kind = "cpu" if options.device == "cpu" else "cuda"
    problem, kernel = (
        (CPU_SOFTMAX / "test_softmax.py", CPU_SOFTMAX / "softmax.c")
        if kind == "cpu"
        else (SOFTMAX / "test_softmax.py", SOFTMAX / "triton_template.py")
    )
    sizes = CPU_SIZES if kind == "cpu" else SIZES
    scratch = Path(tempfile.mkdtemp(prefix="precision-"))
    evaluator = LocalEvaluator(sys.executable, scratch)
    floors: dict[str, float] = {}
    environment: dict[str, str] = {}
    faster, slower = planted_pair(kind, scratch)
    try:
        here = evaluator.torch_device(options.device)
        busy = Busy(here.uuid) if kind == "cuda" else None
        for name, count, work in (
            ("same", options.same, job(options.device, problem, kernel, kernel, sizes)),
            ("planted", options.planted, job(options.device, HERE / "test_planted.py", faster, slower, None)),
        ):
            if count:  # so that no evaluation waits for the start of the harness
                evaluator.describe(Path(work.problem), work.problem_sha256, options.device)
                evaluator.ceilings(options.device, Watch())
            for _ in range(count):
                if time.monotonic() > options.deadline:
                    break
                begin = time.time()
                evaluation = evaluator.evaluate(work, Watch())
                end = time.time()
                environment = {"device": here.name, **evaluation.environment}
                busy_s = busy.seconds(int(begin * 1e6), int(end * 1e6)) if busy else None
                for row in rows(name, evaluation, floors, end - begin, busy_s):
                    write(row)
    finally:
        evaluator.close()
        shutil.rmtree(scratch, ignore_errors=True)
    if kind == "cuda" and options.same:
        for row in naive(options.same):
            write(row)
    return environment


def table(found: list[dict[str, Any]]) -> list[str]:
    """The results, a line a kind and size."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        groups[row["kind"], row["workload"]].append(row)
    lines = [
        "| what | size | evaluations | accepted | median us | spread of the ratio | median s | most GPU s (of) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (kind, workload), group in sorted(groups.items(), reverse=True):
        ratios = [r["ratio"] for r in group]
        sigma = (sum((r - stats.median(ratios)) ** 2 for r in ratios) / len(ratios)) ** 0.5
        if kind == "naive":
            better = sum(r > 1 for r in ratios)
            percent = sum(r >= 1.01 for r in ratios)
            accepted = f"'current > best' {better}, 'at least 1 %' {percent}"
            lines.append(f"| do_bench means, unchanged | {workload} | {len(group)} | {accepted} | | {sigma:.2%} | | |")
            continue
        accepted = str(sum(r["accepted"] for r in group))
        us, seconds = stats.median([r["us"] for r in group]), stats.median([r["seconds"] for r in group])
        name = "unchanged kernel" if kind == "same" else "planted gain"
        busy = [r["gpu_s"] for r in group if r.get("gpu_s") is not None]
        most = f"{max(busy):.1f} ({len(busy)})" if busy else ""
        cells = (name, workload, str(len(group)), accepted, f"{us:.1f}", f"{sigma:.2%}", f"{seconds:.1f}", most)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    """Measure, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--same", type=int, default=20, help="evaluations of an unchanged kernel")
    parser.add_argument("--planted", type=int, default=10, help="evaluations of a planted gain")
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no evaluation after this")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.deadline = time.monotonic() + options.seconds
    samples = options.out / "samples.jsonl"
    with samples.open("a", encoding="utf-8") as file:

        def write(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        environment = measure(options, write)
    found = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    lines = table(found)
    about = ", ".join(f"{k} {v}" for k, v in environment.items())
    page = [f"Last run {datetime.date.today().isoformat()} on {about}.", "", *lines, ""]
    (options.out / "table.md").write_text("\n".join(page), encoding="utf-8")
    print("\n".join(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
