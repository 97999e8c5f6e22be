"""Sweeps parameters of the campaigns' kernels on the visible GPUs, beside the libraries; to choose by, not to report.

    python experiments/campaigns/tune.py [--seconds 240] [--only gemm,fused-moe] [--out FOLDER]

A variant is a kernel file with some of its text replaced. First every variant is compiled, run once and compared with
torch in worker processes of their own: one that hangs or crashes costs only its batch. Then one process per GPU times
the right ones in turns with the library, with the L2 read full of other lines before each call and the device kept busy
while the host enqueues, and prints medians. What is found here is confirmed by a campaign, or it is not true.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BATCH = 4
"""Variants that one checking process gets: a hang loses at most these."""


@dataclass(frozen=True)
class Sweep:
    """One kernel file, the edits to try on it, and the shapes to try them on."""

    kernel: str
    file: str
    edits: list[dict[str, str]]
    """Each a variant: texts of the file and what takes their place; {} is the file as it is."""
    shapes: list[tuple[Any, ...]]
    """The last entry is the dtype."""


def instead(text: str, *others: str) -> list[dict[str, str]]:
    """The file as it is, and one variant for each text that takes the place of `text`."""
    return [{}, *({text: other} for other in others)]


SQUARES = [(2048, 2048, 2048, "bfloat16"), (4096, 4096, 4096, "bfloat16"), (8192, 8192, 8192, "bfloat16")]
ATTENTION = [
    (4, 32, 32, 4096, 128, "bfloat16"),
    (4, 32, 8, 4096, 128, "bfloat16"),
    (1, 32, 8, 16384, 128, "bfloat16"),
    (16, 16, 16, 1024, 64, "float16"),
]
MIXTRAL, DEEPSEEK = (2048, 4096, 14336, 8, 2, "bfloat16"), (4096, 2048, 1408, 64, 6, "bfloat16")
QWEN = (1024, 2048, 768, 128, 8, "float16")
FIRST, SECOND = "        return 16, 32, 256, 4, 4", "            return 16, 32, 512, 4, 3"
LOW = ["16, 32, 128, 4, 6", "16, 64, 128, 4, 4", "16, 16, 512, 4, 3", "16, 32, 256, 8, 4", "16, 32, 256, 4, 5"]
LOW += ["16, 32, 256, 2, 4", "16, 16, 256, 2, 6", "16, 64, 256, 8, 3", "16, 128, 64, 4, 4"]

SWEEPS = [
    Sweep(
        "gemm",
        "10-specialised.py",
        [
            *instead(
                "GROUP=8,\n        num_warps=4", "GROUP=16,\n        num_warps=4", "GROUP=4,\n        num_warps=4"
            ),
            {"[232, 40]": "[240, 24]"},
        ],
        [*SQUARES, (4096, 14336, 4096, "bfloat16"), (4096, 4096, 4096, "float16")],
    ),
    Sweep("gemm", "09-persistent.py", [{}], SQUARES),
    Sweep("gemm", "08-descriptors.py", [{}], SQUARES),
    Sweep("flash-attention", "11-sections.py", [{}], ATTENTION),
    Sweep("flash-attention", "12-in-turns.py", [{}], ATTENTION),
    Sweep(
        "fused-mlp",
        "08-specialised.py",
        instead("        GROUP=8,\n        GATED", "        GROUP=16 if gated else 8,\n        GATED"),
        [(4096, 4096, 11008, "bfloat16"), (4096, 4096, 14336, "bfloat16"), (2048, 2048, 5504, "float16")],
    ),
    Sweep(
        "fused-mlp",
        "09-two-low-tiles.py",
        [
            *instead(FIRST, *(f"        return {tile}" for tile in LOW)),
            *instead(SECOND, *(f"            return {tile}" for tile in LOW))[1:],
        ],
        [(16, 4096, 14336, "bfloat16")],
    ),
    Sweep("fused-mlp", "10-early-launch.py", [{}], [(16, 4096, 14336, "bfloat16")]),
    Sweep("fused-moe", "06-specialised.py", instead("        GROUP=4,", "        GROUP=8,"), [MIXTRAL, DEEPSEEK, QWEN]),
    Sweep("fused-moe", "07-half-blocks.py", instead("        GROUP=4,", "        GROUP=8,"), [MIXTRAL, DEEPSEEK, QWEN]),
]


# What is computed -----------------------------------------------------------------------------------------------------


def inputs(kernel: str, shape: tuple[Any, ...]) -> list[Any]:
    """Random tensors for one shape, on the current device."""
    import torch

    dtype = getattr(torch, shape[-1])
    torch.manual_seed(0)

    def normal(*size: int, scale: float = 1.0) -> Any:
        return torch.randn(size, device="cuda", dtype=dtype) * scale

    if kernel == "gemm":
        m, n, k = shape[:3]
        return [normal(m, k), normal(k, n, scale=k**-0.5)]
    if kernel == "flash-attention":
        batch, heads, kv_heads, seq, dim = shape[:5]
        return [normal(batch, heads, seq, dim), normal(batch, kv_heads, seq, dim), normal(batch, kv_heads, seq, dim)]
    tokens, width, inter = shape[:3]
    if kernel == "fused-mlp":
        return [
            normal(tokens, width),
            normal(inter, width, scale=width**-0.5),
            normal(inter, width, scale=width**-0.5),
            normal(width, inter, scale=inter**-0.5),
        ]
    count, topk = shape[3:5]
    return [
        normal(tokens, width),
        normal(count, inter, width, scale=width**-0.5),
        normal(count, inter, width, scale=width**-0.5),
        normal(count, width, inter, scale=inter**-0.5),
        torch.rand(tokens, topk, device="cuda") + 0.05,
        torch.randint(count, (tokens, topk), device="cuda"),
    ]


def flops(kernel: str, shape: tuple[Any, ...]) -> float:
    """Operations that the definition needs, as the problems count them."""
    if kernel == "gemm":
        return 2.0 * shape[0] * shape[1] * shape[2]
    if kernel == "flash-attention":
        batch, heads, _, seq, dim = shape[:5]
        return 4.0 * batch * heads * (seq * (seq + 1) / 2) * dim
    return 6.0 * shape[0] * shape[1] * shape[2] * (shape[4] if kernel == "fused-moe" else 1)


def rivals(kernel: str) -> dict[str, Callable[..., Any]]:
    """What a library does; the first is also what results are compared with."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    f = torch.nn.functional

    def sdpa(backend: SDPBackend) -> Callable[..., Any]:
        def attention(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel([backend]):
                return f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

        return attention

    def mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return f.linear(f.silu(f.linear(x, gate)) * f.linear(x, up), down)

    def moe(x: Any, gate: Any, up: Any, down: Any, scores: Any, experts: Any) -> Any:
        out = torch.zeros_like(x)
        for expert in range(gate.shape[0]):
            tokens, slots = (experts == expert).nonzero(as_tuple=True)
            result = mlp(x[tokens], gate[expert], up[expert], down[expert])
            out.index_add_(0, tokens, result * scores[tokens, slots, None].to(x.dtype))
        return out

    def default(q: Any, k: Any, v: Any) -> Any:
        return f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    return {
        "gemm": {"cublas": torch.matmul},
        "flash-attention": {
            "torch": default,
            "flash2": sdpa(SDPBackend.FLASH_ATTENTION),
            "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
        },
        "fused-mlp": {"torch": mlp},
        "fused-moe": {"torch": moe},
    }[kernel]


Job = tuple[str, str, dict[str, str], tuple[Any, ...]]
"""(kernel, file, edits, shape)."""


def jobs(only: set[str]) -> list[Job]:
    """All of them, in a fixed order."""
    wanted = [s for s in SWEEPS if not only or s.kernel in only]
    return [(s.kernel, s.file, edits, shape) for s in wanted for shape in s.shapes for edits in s.edits]


MODULES: dict[str, Any] = {}


def entry(job: Job, out: Path) -> Callable[..., Any]:
    """The function of the edited file that a kernel is called by."""
    kernel, file, edits, _ = job
    text = (HERE / kernel / file).read_text()
    for old, new in edits.items():
        if text.count(old) != 1:
            raise ValueError(f"{file} has {old!r} {text.count(old)} times, not once")
        text = text.replace(old, new)
    name = f"{kernel.replace('-', '_')}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if name not in MODULES:
        path = out / f"{name}.py"
        if not path.exists():
            path.with_suffix(f".{os.getpid()}").write_text(text)
            path.with_suffix(f".{os.getpid()}").replace(path)
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a Python file")
        MODULES[name] = importlib.util.module_from_spec(spec)
        sys.modules[name] = MODULES[name]
        spec.loader.exec_module(MODULES[name])
    found: Callable[..., Any] = getattr(MODULES[name], kernel.replace("-", "_"))
    return found


# Checking -------------------------------------------------------------------------------------------------------------


def check(numbers: list[int], only: set[str], out: Path) -> None:
    """Compile, run and compare some jobs; one JSON line each, written as soon as it is known."""
    import torch

    every = jobs(only)
    made: tuple[Any, list[Any], Any] | None = None
    with (out / f"check-{numbers[0]}.jsonl").open("w") as lines:
        for number in numbers:
            kernel, _, _, shape = every[number]
            if made is None or made[0] != (kernel, shape):
                args = inputs(kernel, shape)
                made = ((kernel, shape), args, next(iter(rivals(kernel).values()))(*args).float())
            lines.write(json.dumps({"job": number, "state": "started"}) + "\n")
            lines.flush()
            try:
                got = entry(every[number], out)(*made[1])
                torch.cuda.synchronize()
                error = float((got.float() - made[2]).abs().max() / made[2].abs().max())
                state = "ok" if error < (1e-5 if shape[-1] == "float32" else 2e-2) else f"wrong: {error:.3g}"
            except Exception as failure:
                state = f"{type(failure).__name__}: {str(failure)[:300]}"
            lines.write(json.dumps({"job": number, "state": state}) + "\n")
            lines.flush()
            if "CUDA error" in state or "AcceleratorError" in state:
                return


def check_all(only: set[str], out: Path, gpus: int, until: float, width: int) -> dict[int, str]:
    """State of each job by its number."""
    every = jobs(only)
    order = sorted(range(len(every)), key=lambda n: (every[n][0], str(every[n][3])))
    batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    running: list[tuple[subprocess.Popen[bytes], float]] = []
    started = 0
    while (batches or running) and time.monotonic() < until:
        running = [(p, t) for p, t in running if not ended(p, t)]
        while batches and len(running) < width:
            numbers = batches.pop(0)
            env = {**os.environ, "CUDA_VISIBLE_DEVICES": visible()[started % gpus]}
            command = [sys.executable, __file__, "--check", json.dumps(numbers), "--out", str(out)]
            process = subprocess.Popen([*command, "--only", ",".join(only)], env=env, stderr=subprocess.DEVNULL)
            running.append((process, time.monotonic()))
            started += 1
        time.sleep(0.05)
    for process, _ in running:
        process.kill()
        process.wait()
    states: dict[int, str] = {}
    for path in out.glob("check-*.jsonl"):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            states[told["job"]] = "hung or crashed" if told["state"] == "started" else told["state"]
    return states


def ended(process: subprocess.Popen[bytes], since: float) -> bool:
    """Whether a checking process is over; one that has had a minute is ended."""
    if process.poll() is None and time.monotonic() - since > 60:
        process.kill()
        process.wait()
    return process.poll() is not None


@functools.cache
def visible() -> list[str]:
    """The GPUs that may be used, as CUDA_VISIBLE_DEVICES names them."""
    if given := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return given.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [str(i) for i in range(len(listed))]


# Timing ---------------------------------------------------------------------------------------------------------------


def time_all(numbers: list[int], only: set[str], until: float, out: Path, name: str) -> None:
    """Time some jobs, shape by shape, in turns with the library; rewrite the results after each shape."""
    import torch

    every = jobs(only)
    other = torch.zeros(64 * 2**20, device="cuda")  # 256 MiB, read before each call
    shapes = list(dict.fromkeys((every[n][0], every[n][3]) for n in numbers))
    results = []
    for at, (kernel, shape) in enumerate(shapes):
        share = (until - time.monotonic()) / (len(shapes) - at)
        end = time.monotonic() + share
        args = inputs(kernel, shape)
        runs = {rival: run for rival, run in rivals(kernel).items() if works(run, args)}
        runs |= {str(n): entry(every[n], out) for n in numbers if (every[n][0], every[n][3]) == (kernel, shape)}
        samples: dict[str, list[float]] = {key: [] for key in runs}
        while time.monotonic() < end:
            for key, run in runs.items():
                samples[key] += measure(run, args, other)
        work = flops(kernel, shape)
        rows = [
            {
                "kernel": kernel,
                "shape": shape,
                "us": statistics.median(s),
                "tflops": work / statistics.median(s) / 1e6,
                "samples": len(s),
                **described(every, key),
            }
            for key, s in samples.items()
            if s
        ]
        results += sorted(rows, key=lambda row: row["us"])
        (out / f"times-{name}.json").write_text(json.dumps(results, indent=1))


def described(every: list[Job], key: str) -> dict[str, Any]:
    """What a row of the results is about: a library, or a file and its edits."""
    if not key.isdigit():
        return {"what": key}
    _, file, edits, _ = every[int(key)]
    return {"what": file, "edits": edits}


def works(run: Callable[..., Any], args: list[Any]) -> bool:
    """Whether a library takes these arguments at all."""
    try:
        run(*args)
    except Exception:
        return False
    return True


def measure(run: Callable[..., Any], args: list[Any], other: Any, times: int = 5) -> list[float]:
    """Microseconds of some calls, each after an eviction by reads."""
    import torch

    run(*args)
    torch.cuda.synchronize()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
    torch.cuda._sleep(4_000_000)
    for start, stop in events:
        other.max()
        start.record()
        run(*args)
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) * 1e3 for start, stop in events]


def time_on_gpus(states: dict[int, str], only: set[str], out: Path, gpus: int, seconds: float) -> list[dict[str, Any]]:
    """Divide the shapes among the GPUs and gather what they measured."""
    every = jobs(only)
    right = [n for n in states if states[n] == "ok"]
    by_shape: dict[Any, list[int]] = {}
    for number in sorted(right):
        by_shape.setdefault((every[number][0], every[number][3]), []).append(number)
    shares: list[list[int]] = [[] for _ in range(gpus)]
    for numbers in sorted(by_shape.values(), key=len, reverse=True):
        min(shares, key=len).extend(numbers)
    processes = []
    for gpu, share in enumerate(shares):
        if not share:
            continue
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": visible()[gpu]}
        command = [sys.executable, __file__, "--time", json.dumps(share), "--seconds", str(seconds), "--out", str(out)]
        processes.append(subprocess.Popen([*command, "--name", str(gpu), "--only", ",".join(only)], env=env))
    deadline = time.monotonic() + seconds + 30
    for process in processes:
        try:
            process.wait(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
    return [row for path in sorted(out.glob("times-*.json")) for row in json.loads(path.read_text())]


def report(rows: list[dict[str, Any]], states: dict[int, str], only: set[str]) -> Iterator[str]:
    """The libraries and the five best of each shape, and what did not work."""
    for key in dict.fromkeys((row["kernel"], tuple(row["shape"])) for row in rows):
        here = [row for row in rows if (row["kernel"], tuple(row["shape"])) == key]
        yield f"{key[0]} {'x'.join(map(str, key[1]))}"
        own = [row for row in here if "edits" in row]
        for row in [*(row for row in here if "edits" not in row), *own[:5]]:
            edits = "; ".join(" ".join(new.split()) for new in row.get("edits", {}).values())
            yield f"  {row['us']:9.1f} us {row['tflops']:7.1f} TFLOPS  {row['what']} {edits}"
    every = jobs(only)
    failed: dict[str, list[int]] = {}
    for number in range(len(every)):
        if (state := states.get(number, "not reached")) != "ok":
            failed.setdefault(f"{every[number][0]} {every[number][1]} {every[number][3]}: {state}", []).append(number)
    for text, numbers in failed.items():
        yield f"FAILED {len(numbers)} x {text} e.g. {every[numbers[0]][2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--only", default="", help="kernels, by commas")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "tuning")))
    parser.add_argument("--width", type=int, default=min(48, os.cpu_count() or 1), help="checking processes at a time")
    parser.add_argument("--check", type=json.loads)
    parser.add_argument("--time", type=json.loads)
    parser.add_argument("--name", default="0")
    given = parser.parse_args()
    begun = time.monotonic()
    only = {name for name in given.only.split(",") if name}
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TRITON_CACHE_DIR", "/tmp/tune-triton-cache")
    if given.check:
        check(given.check, only, given.out)
    elif given.time:
        time_all(given.time, only, begun + given.seconds, given.out, given.name)
    else:
        sweep(given, only, begun)


def sweep(given: argparse.Namespace, only: set[str], begun: float) -> None:
    """Check everything, time what is right, and print it."""
    gpus = len(visible())
    states = check_all(only, given.out, gpus, begun + 0.55 * given.seconds, given.width)
    print(
        f"{sum(s == 'ok' for s in states.values())} of {len(jobs(only))} variants are right, "
        f"after {time.monotonic() - begun:.0f} s on {gpus} GPUs",
        flush=True,
    )
    left = given.seconds - (time.monotonic() - begun) - 12  # the processes' own start
    rows = time_on_gpus(states, only, given.out, gpus, max(20.0, left))
    text = "\n".join(report(rows, states, only))
    (given.out / "tuning.txt").write_text(text + "\n")
    (given.out / "states.json").write_text(json.dumps(states, indent=1))
    print(text)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
