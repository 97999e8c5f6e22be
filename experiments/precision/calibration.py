"""Which clock tells the truth about a short kernel? Events, graphs of many calls, and CUPTI on kernels of known cost.

    python experiments/precision/calibration.py --out OUT

Two families of kernels whose cost is known apart from any of these clocks. *Chains* of dependent multiply-adds on one
wave of blocks take a fixed time and so many cycles for each step, and write down themselves when their first block
began and their last one ended, by the device's own nanosecond counter. *Copies* of n bytes cannot be faster than the
device's copy rate allows. Each is timed by

    events      as the evaluator does it: two events around the call behind a busy device, an empty pair subtracted
    graph       a CUDA graph of N calls, divided by N; cold: the graph's evictions timed alone and subtracted
    cupti       the kernel's own span in the activity records of torch.profiler

with the L2 evicted by reading before each call (cold) and without (warm). Writes OUT/calibration.md and
OUT/calibration.json; the comparison takes about a minute of an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kopt_mcp import stats  # noqa: E402

STEPS = (0, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
"""Steps of the chains: from launch overhead alone to some tens of microseconds."""
LONG_STEPS = 4096
"""From here on a chain is long enough for every clock to agree; the slope is taken there."""
GAIN = 1.1
"""Cost of a slower twin, to see which clock shows how much of a known gain."""
COPIES = tuple(1 << exponent for exponent in range(14, 29, 2))
"""Bytes copied, each read once and written once."""
CALLS, GRAPH_CALLS, GRAPH_REPLAYS = 61, 20, 15
SPIN_US = 200.0
BLOCK, WARPS = 128, 4
SHORT_US = 20.0
METHODS = ("events", "graph", "cupti")

Row = dict[str, Any]


def measure() -> dict[str, Any]:
    """All rows; needs a CUDA device and Triton."""
    import torch

    device = Device()
    chains = []
    for steps in STEPS:
        for cost in dict.fromkeys((steps, round(steps * GAIN))):
            call, own_us = device.chain(cost)
            chains.append({"steps": cost, "twin_of": steps, "own_us": own_us(), **device.times(call, "_chain")})
            print(chains[-1], flush=True)
    copies = []
    for size in COPIES:
        row = {"bytes": size, **device.times(device.copy(size), "Memcpy")}
        copies.append(row)
        print(row, flush=True)
    rate = 2 * COPIES[-1] / copies[-1]["cupti_cold"]
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "date": datetime.date.today().isoformat(),
        "empty_us": round(device.empty_us, 3),
        "bytes_per_us": rate,
    }
    return {"about": about, "chains": chains, "copies": copies}


class Device:
    """The GPU, its kernels of known cost, and three clocks."""

    def __init__(self) -> None:
        import torch

        from kopt_mcp.evaluator.timing import EventClock

        self._torch: Any = torch
        properties = torch.cuda.get_device_properties(0)
        self._blocks = properties.multi_processor_count
        self._clock = EventClock(properties.L2_cache_size)
        self.empty_us = self._clock.empty_us
        words = max(2 * properties.L2_cache_size, 256 << 20) // 8
        self._buffer = torch.zeros(words, dtype=torch.int64, device="cuda")
        self._sum = torch.zeros((), dtype=torch.int64, device="cuda")

    def chain(self, steps: int) -> tuple[Callable[[], Any], Callable[[], float]]:
        """A chain of so many steps, and what its blocks say of its length in microseconds, median of some calls."""
        torch = self._torch
        kernel = _chain_kernel()
        x = torch.ones(self._blocks * BLOCK, device="cuda")
        out = torch.empty_like(x)
        stamps = torch.zeros(2, self._blocks, dtype=torch.int64, device="cuda")

        def call() -> Any:
            kernel[(self._blocks,)](x, out, stamps, stamps[1], 1.0, 0.0, steps, BLOCK=BLOCK, num_warps=WARPS)
            return out

        def own_us() -> float:
            spans = []
            for _ in range(CALLS):
                self._evict()
                call()
                begin, end = stamps[0].min().item(), stamps[1].max().item()
                spans.append((end - begin) / 1e3)
            return stats.median(spans)

        return call, own_us

    def copy(self, size: int) -> Callable[[], Any]:
        """A copy of `size` bytes from one tensor to another."""
        x = self._torch.ones(size, dtype=self._torch.uint8, device="cuda")
        out = self._torch.empty_like(x)
        return lambda: out.copy_(x)

    def times(self, call: Callable[[], Any], name: str) -> Row:
        """Median microseconds by each method, cold and warm; `name` begins or is in the kernel's name for CUPTI."""
        call()
        self._torch.cuda.synchronize()
        row: Row = {}
        for regime, warm in (("cold", False), ("warm", True)):
            row[f"events_{regime}"] = self._events(call, warm)
            row[f"graph_{regime}"] = self._graph(call, warm)
            row[f"cupti_{regime}"] = self._cupti(call, name, warm)
        return {key: round(value, 4) for key, value in row.items()}

    def _events(self, call: Callable[[], Any], warm: bool) -> float:
        samples = [self._clock.sample(call, SPIN_US, warm)[1].us for _ in range(CALLS)]
        return stats.median(samples) - self.empty_us

    def _graph(self, call: Callable[[], Any], warm: bool) -> float:
        if warm:
            return self._replayed([call])
        return self._replayed([self._evict, call]) - self._replayed([self._evict])

    def _replayed(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Median microseconds of one round of `calls` in a graph of many."""
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            for _ in range(GRAPH_CALLS):
                for one in calls:
                    one()
        graph.replay()
        samples = [self._clock.sample(graph.replay, SPIN_US, warm=True)[1].us for _ in range(GRAPH_REPLAYS)]
        return (stats.median(samples) - self.empty_us) / GRAPH_CALLS

    def _cupti(self, call: Callable[[], Any], name: str, warm: bool) -> float:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as session:
            for _ in range(CALLS):
                if not warm:
                    self._evict()
                call()
            self._torch.cuda.synchronize()
        spans = [e.time_range.elapsed_us() for e in session.events() if name in e.name and _on_gpu(e)]
        if len(spans) < CALLS // 2:
            raise RuntimeError(f"CUPTI recorded {len(spans)} of {CALLS} kernels named like {name!r}")
        return stats.median(spans)

    def _evict(self) -> None:
        self._torch.sum(self._buffer, dim=0, out=self._sum)


def _on_gpu(event: Any) -> bool:
    return bool(event.device_type.name == "CUDA")


def _chain_kernel() -> Any:
    """Dependent multiply-adds that change nothing, between two readings of the device's nanosecond counter."""
    import triton
    import triton.language as tl

    # Triton reads a kernel's globals, and this module is imported without it.
    globals().update(tl=tl)

    @triton.jit
    def _chain(x_ptr, out_ptr, begin_ptr, end_ptr, one, zero, steps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        block = tl.program_id(0)
        tl.store(begin_ptr + block, tl.extra.cuda.globaltimer())
        offsets = block * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x_ptr + offsets)
        for _ in range(steps):
            value = value * one + zero
        tl.store(out_ptr + offsets, value)
        tl.debug_barrier()
        tl.store(end_ptr + block, tl.extra.cuda.globaltimer())

    return _chain


# What the rows say; pure


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: intercept and slope of y over x."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return mean_y - slope * mean_x, slope


def verdicts(found: dict[str, Any]) -> list[Row]:
    """Each method on the chains: its slope beside the counter's own, and its constant beside CUPTI's.

    A clock that is right but for a constant has the true slope: long kernels are measured well, and of a short kernel's
    relative gain it shows too little, by its constant's share of the time.
    """
    chains = [row for row in found["chains"] if row["steps"] == row["twin_of"]]
    longs = [row for row in chains if row["steps"] >= LONG_STEPS]
    _, true_slope = line([(row["steps"], row["own_us"]) for row in longs])
    told = []
    for method in METHODS:
        _, slope = line([(row["steps"], row[f"{method}_cold"]) for row in longs])
        over = [row[f"{method}_cold"] - row["cupti_cold"] for row in chains if row["cupti_cold"] < SHORT_US]
        told.append(
            {
                "method": method,
                "slope": slope / true_slope,
                "over_cupti_us": stats.median(over),
                "spread_us": max(over) - min(over),
            }
        )
    return told


def gains(found: dict[str, Any]) -> list[Row]:
    """By how many per cent each clock finds a chain with 10 % more steps to be longer, and by how many it is."""
    chains = {row["steps"]: row for row in found["chains"] if row["steps"] == row["twin_of"]}
    told = []
    for twin in found["chains"]:
        base = chains[twin["twin_of"]]
        if twin is not base:
            clocks = {m: 100 * (twin[f"{m}_cold"] / base[f"{m}_cold"] - 1) for m in METHODS}
            told.append({"us": base["cupti_cold"], "own": 100 * (twin["own_us"] / base["own_us"] - 1), **clocks})
    return told


def page(found: dict[str, Any]) -> str:
    """The results in Markdown."""
    about = found["about"]
    return "\n".join(
        [
            "# Clocks on kernels of known cost",
            "",
            f"{about['device']}, torch {about['torch']}, CUDA {about['cuda']}, {about['date']}. An empty pair of",
            f"events reads {about['empty_us']} us, which is subtracted. By `experiments/precision/calibration.py`.",
            "",
            "## Chains of dependent multiply-adds, one wave of blocks, microseconds",
            "",
            "*own*: from the first block's begin to the last block's end, by the device's nanosecond counter.",
            "",
            *_markdown(
                ["steps", "own", *(f"{m}, {r}" for r in ("cold", "warm") for m in METHODS)],
                [
                    [str(row["steps"]), _us(row["own_us"]), *_all(row)]
                    for row in found["chains"]
                    if row["steps"] == row["twin_of"]
                ],
            ),
            "",
            "## Copies, microseconds",
            "",
            "*floor*: the bytes at the rate of the largest copy.",
            "",
            *_markdown(
                ["bytes", "floor", *(f"{m}, {r}" for r in ("cold", "warm") for m in METHODS)],
                [
                    [str(row["bytes"]), _us(2 * row["bytes"] / about["bytes_per_us"]), *_all(row)]
                    for row in found["copies"]
                ],
            ),
            "",
            "## What each clock is worth, cold",
            "",
            "*slope*: cost of a further step on long chains, over the counter's own. *over CUPTI*: median difference",
            f"on chains below {SHORT_US:g} us, and its range.",
            "",
            *_markdown(
                ["method", "slope", "over CUPTI, us", "range, us"],
                [
                    [row["method"], f"{row['slope']:.3f}", _us(row["over_cupti_us"]), _us(row["spread_us"])]
                    for row in verdicts(found)
                ],
            ),
            "",
            f"## How much longer a chain with {100 * (GAIN - 1):.0f} % more steps is found to be, cold, per cent",
            "",
            *_markdown(
                ["length by CUPTI, us", "own", *METHODS],
                [[_us(row["us"]), *(f"{row[name]:.1f}" for name in ("own", *METHODS))] for row in gains(found)],
            ),
            "",
        ]
    )


def _all(row: Row) -> list[str]:
    return [_us(row[f"{method}_{regime}"]) for regime in ("cold", "warm") for method in METHODS]


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def main() -> int:
    """Measure, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--read", action="store_true", help="write the page anew from OUT/calibration.json")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "calibration.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if options.read else measure()
    (options.out / "calibration.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    text = page(found)
    (options.out / "calibration.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
