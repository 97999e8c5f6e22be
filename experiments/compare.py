"""Time a kernel and everything that one could use instead, in turns, on every timed workload of its problem.

    python experiments/compare.py OUT [PROBLEM ...]

PROBLEM is a folder of `skills/kernels` (default: all), or one of its tests, as in `softmax/test_softmax_backward.py`.
Implementations: the template, what a campaign's patches make of it, and the problem's comparisons. In each block every
implementation is called a few times, in random order, with the L2 evicted before each call and other inputs each time;
a block's value is the median of its calls. The ratio against the best of the others is the median over blocks of the
ratios within a block, with a 95 % interval (`stats.bootstrap_interval`). A roof is measured in the same way: for a
memory-bound problem a copy that moves the same bytes, in the same blocks; for a compute-bound one the vendor's product
of two 8192x8192 matrices in the workload's type, once a process.

These are trusted implementations, each checked once against the reference: the evaluator's distrust is not needed here.
GPUs that are visible work side by side, one problem each. Writes OUT/<problem>.json and OUT/table.md; workloads that
are in there already are not measured again.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "skills" / "kernels"
CAMPAIGNS = Path(__file__).resolve().parent / "campaigns"
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from kopt_mcp import stats  # noqa: E402
from kopt_mcp.problem import Problem, Workload  # noqa: E402

BLOCKS = 20
CALLS = 3
SETS = 3
"""Sets of inputs that take turns."""
MOST_BYTES = 40e9
ROOF_SIZE = 8192
WORKER = "--worker"
SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def load(path: Path) -> Any:
    """The module in a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def kernels(problem: Problem, test: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The template and, where a campaign says which of its patches pay, what they make of it (written to `folder`)."""
    backward = test.stem.endswith("_backward")
    yield "template", test.parent / ("triton_backward_template.py" if backward else "triton_template.py")
    plan = CAMPAIGNS / problem.name / "campaign.yaml"
    if plan.is_file() and (text := patched(plan)):
        path = folder / f"{problem.name}.py"
        path.write_text(text, encoding="utf-8")
        yield "patched", path


def patched(plan: Path) -> str:
    """The campaign's kernel with those patches whose numbers are listed under `paid`; empty without such a list."""
    campaign = yaml.safe_load(plan.read_text(encoding="utf-8"))
    text = (ROOT / campaign["kernel"]).read_text(encoding="utf-8") if campaign.get("paid") else ""
    for number in campaign.get("paid", ()):
        patch = campaign["patches"][number - 1]
        if "file" in patch:
            text = (plan.parent / patch["file"]).read_text(encoding="utf-8")
        for edit in patch.get("edits", ()):
            text = text.replace(edit["search"], edit["replace"])
    return text


def implementations(problem: Problem, test: Path) -> dict[str, Callable[..., Any]]:
    """By name, each called like the reference."""
    folder = Path(tempfile.mkdtemp(prefix="patched-"))  # Triton reads a kernel's source when it compiles: to be kept
    found = {name: getattr(load(path), problem.entry) for name, path in kernels(problem, test, folder)}
    return {**found, **problem.comparisons}


class Timer:
    """Times calls with the evaluator's own clock."""

    def __init__(self) -> None:
        import torch

        from kopt_mcp.evaluator.timing import clock_for

        self.torch = torch
        self.clock = clock_for("cuda", torch.cuda.get_device_properties(0).L2_cache_size)
        self.empty_us = self.clock.empty_us

    def spin_us(self, call: Callable[[], Any]) -> float:
        """How long the device has to be kept busy for the host's work not to be measured."""
        call()
        return min(2 * max(self.clock.sample(call, 0.0, warm=True)[1].host_us for _ in range(2)) + 50, 20_000.0)

    def us(self, call: Callable[[], Any], spin_us: float) -> float:
        """One call, with a cold L2."""
        return self.clock.sample(call, spin_us, warm=False)[1].us - self.empty_us

    @functools.cache  # noqa: B019 - one timer a process
    def peak_tflops(self, dtype: str) -> float:
        """What the vendor's matrix product reaches."""
        kind = getattr(self.torch, dtype)
        a, b = (self.torch.randn(ROOF_SIZE, ROOF_SIZE, device="cuda").to(kind) for _ in range(2))
        times = [self.us(lambda: self.torch.matmul(a, b), 200.0) for _ in range(15)]
        return 2 * ROOF_SIZE**3 / stats.median(times) / 1e6


def copy_of(torch: Any, size: float) -> Callable[..., Any]:
    """A copy that reads and writes `size` bytes together."""
    source = torch.empty(max(int(size) // 2, 1), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda *_: target.copy_(source)


def agrees(torch: Any, expected: Any, out: Any) -> bool:
    """Whether an implementation computes the same thing at all; how exactly is not the question here."""
    pairs = zip(*(x if isinstance(x, (tuple, list)) else (x,) for x in (expected, out)), strict=True)
    return all(
        bool(((a.double() - b.double()).norm() / a.double().norm().clamp_min(1e-30)) < 2e-2)  # 2^-8 is bf16's step
        for a, b in pairs
    )


def measure(problem: Problem, found: dict[str, Callable[..., Any]], workload: Workload, timer: Timer) -> dict[str, Any]:
    """All implementations on one workload."""
    from kopt_mcp.evaluator.inputs import draw

    torch, case = timer.torch, problem.case(workload)
    sets = max(1, min(SETS, int(MOST_BYTES / max(case.bytes, 1))))
    args = [draw(case.inputs, case.literals, seed, "cuda").args for seed in range(1, sets + 1)]
    expected = problem.reference(*args[0])
    spins: dict[str, float] = {}
    trouble: dict[str, str] = {}
    runs = dict(found)
    if problem.bound == "memory":
        runs["copy"] = copy_of(torch, case.bytes)
    for name, call in runs.items():
        try:
            if name != "copy" and not agrees(torch, expected, call(*args[0])):
                trouble[name] = "disagrees with the reference"
                continue
            spins[name] = max(timer.spin_us(functools.partial(call, *a)) for a in args)
        except Exception as error:
            trouble[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    del expected
    times = blocks(runs, spins, args, timer)
    return {
        "workload": workload.name,
        "dtype": workload.dtype,
        "bytes": case.bytes,
        "flops": case.flops,
        "blocks": times,
        "trouble": trouble,
        "peak_tflops": timer.peak_tflops(workload.dtype) if problem.bound == "compute" else None,
    }


def blocks(
    runs: dict[str, Callable[..., Any]], spins: dict[str, float], args: Sequence[Any], timer: Timer
) -> dict[str, list[float]]:
    """By name, the median of each block in microseconds."""
    order, shuffle = list(spins), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in order}
    for block in range(BLOCKS):
        shuffle.shuffle(order)
        for name in order:
            sets = [args[(block * CALLS + n) % len(args)] for n in range(CALLS)]
            calls = [functools.partial(runs[name], *a) for a in sets]
            times[name].append(round(stats.median([timer.us(call, spins[name]) for call in calls]), 3))
    return times


def work(test: Path, out: Path) -> None:
    """One problem, in a process of its own."""
    import torch
    import triton

    problem: Problem = load(test).PROBLEM
    found = implementations(problem, test)
    timer = Timer()
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
    )
    about = {
        "card": torch.cuda.get_device_name(0),
        "driver": driver.stdout.split("\n")[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    known = {row["workload"] for row in rows}
    for workload in problem.for_device("cuda"):
        if workload.timed and workload.name not in known:
            begin = time.perf_counter()
            rows.append({**measure(problem, found, workload, timer), "seconds": round(time.perf_counter() - begin, 1)})
            whole = {"problem": problem.name, "bound": problem.bound, "about": about, "rows": rows}
            out.write_text(json.dumps(whole), encoding="utf-8")
            torch.cuda.empty_cache()
            print(line(problem.name, problem.bound, rows[-1]), flush=True)


def line(name: str, bound: str, row: dict[str, Any]) -> str:
    """A workload's results as a row of the table."""
    medians = {key: stats.median(times) for key, times in row["blocks"].items()}
    ours = "patched" if "patched" in medians else "template"
    others = {key: us for key, us in medians.items() if key not in ("copy", "template", "patched")}
    cells = [name, row["workload"], _roof(bound, row, medians)]
    for key in ("template", "patched"):
        cells.append(f"{medians[key]:.2f} ({_share(bound, row, medians, key):.0f} %)" if key in medians else "–")
    for key in ("torch", "torch.compile"):
        cells.append(f"{medians[key]:.2f}" if key in medians else "–")
    rest = sorted((us, key) for key, us in others.items() if key not in ("torch", "torch.compile"))
    cells.append(", ".join(f"{key} {us:.2f}" for us, key in rest) or "–")
    cells.append(_against(row, ours, min(others, key=lambda key: others[key])) if others and ours in medians else "–")
    return "| " + " | ".join(cells) + " |"


def _against(row: dict[str, Any], ours: str, other: str) -> str:
    ratios = [theirs / mine for mine, theirs in zip(row["blocks"][ours], row["blocks"][other], strict=True)]
    value, low, high = stats.bootstrap_interval(ratios)
    return f"{value:.3f} [{low:.3f}, {high:.3f}] × {other}"


def _roof(bound: str, row: dict[str, Any], medians: dict[str, float]) -> str:
    if bound == "memory":
        return f"{row['bytes'] / medians['copy'] / 1e3:.0f} GB/s"
    return f"{row['peak_tflops']:.0f} TFLOPS"


def _share(bound: str, row: dict[str, Any], medians: dict[str, float], ours: str) -> float:
    """Percent of the roof."""
    if bound == "memory":
        return 100 * medians["copy"] / medians[ours]
    return 100 * row["flops"] / medians[ours] / 1e6 / float(row["peak_tflops"])


HEAD = (
    "| problem | workload | roof | template | patched | torch | torch.compile | other libraries | "
    "ours, in turns with the best other |\n|" + "---|" * 9
)


def table(out: Path) -> str:
    """All results in a folder."""
    lines: list[str] = []
    about: dict[str, str] = {}
    trouble: set[str] = set()
    for path in sorted(out.glob("*.json")):
        whole = json.loads(path.read_text(encoding="utf-8"))
        about = whole["about"]
        lines += [line(whole["problem"], whole["bound"], row) for row in whole["rows"]]
        trouble |= {
            f"{whole['problem']}, {name}: {why}" for row in whole["rows"] for name, why in row["trouble"].items()
        }
    facts = ", ".join(f"{key} {value}" for key, value in about.items())
    return f"Microseconds, medians of {BLOCKS} blocks of {CALLS} calls, L2 cold. {facts}.\n\n{HEAD}\n" + "\n".join(
        lines
    )


def write_table(out: Path) -> None:
    """OUT/table.md, and the same on the screen."""
    text = table(out)
    (out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def tests(names: Sequence[str]) -> list[Path]:
    """The problem files meant."""
    found = []
    for name in names or sorted(path.name for path in KERNELS.iterdir()):
        path = KERNELS / name
        found += [path] if path.suffix == ".py" else sorted(path.glob("test_*.py"))
    return found


def main(options: argparse.Namespace) -> None:
    """A process a problem, spread over the GPUs."""
    options.out.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ")
    gpus = options.gpus or list(range(listed))
    free: Queue[int] = Queue()
    for gpu in gpus:
        free.put(gpu)
    share = (os.cpu_count() or 1) // max(listed, 1)

    def one(test: Path) -> None:
        gpu = free.get()
        cores = range(gpu * share, (gpu + 1) * share)
        command = [sys.executable, __file__, str(options.out / f"{test.stem}.json"), WORKER, str(test)]
        try:
            subprocess.run(
                command,
                check=False,
                timeout=options.seconds,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)},
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        except subprocess.TimeoutExpired:
            print(f"{test.stem}: stopped after {options.seconds} s", flush=True)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(len(gpus)) as pool:
        list(pool.map(one, tests(options.names)))
    write_table(options.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--table", action="store_true", help="measure nothing; write OUT/table.md of what OUT holds")
    parser.add_argument("--gpus", type=int, nargs="*", help="numbers of the GPUs to use (default: all)")
    parser.add_argument("--seconds", type=float, default=400.0, help="the most for one problem")
    parser.add_argument(WORKER, type=Path, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        work(chosen.worker, chosen.out)
    elif chosen.table:
        write_table(chosen.out)
    else:
        main(chosen)
