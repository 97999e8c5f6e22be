"""What one iteration costs: apply_patch, verify, benchmark and decide on a real device, and where the seconds go.

    python experiments/overhead/iteration.py --device cuda:0 --iterations 10 --out OUT

Runs the real loop, from the patch to the decision, on a softmax with at least five timed workloads: the Triton template
on a GPU, the C example on a CPU. Before each patch is a pause that is not counted, in which an agent would think and
the evaluator gets processes ready (`--pause`, two seconds unless said otherwise). Each iteration is a version that was
not tried before. What comes before (baseline, profile, diagnose) is not counted, and neither is the confirmation at an
experiment's end, which no iteration contains. Writes OUT/iteration.md and OUT/iteration.json with every iteration, and
medians by part: the evaluator notes in each evaluation what it has spent its time on.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kopt_mcp.evaluator.client import LocalEvaluator  # noqa: E402
from kopt_mcp.loop import Loop  # noqa: E402
from kopt_mcp.platforms import detect_all  # noqa: E402
from kopt_mcp.platforms.present import Present  # noqa: E402

TOOLS = ("apply_patch", "verify", "benchmark", "decide")
OUT_OF_REACH = 1e6
"""A target in GB/s that nothing meets, so that the experiment goes on."""


def triton_versions(text: str) -> Iterator[tuple[str, str]]:
    """The template under other numbers of warps and stages: one hypothesis and text each."""
    for stages, warps in product((1, 2, 3, 4, 5), (8, 16, 2, 4, 1)):
        if (stages, warps) != (3, 4):  # what the template has by default
            changed = text.replace("num_warps=4,", f"num_warps={warps}, num_stages={stages},")
            yield f"{warps} warps and {stages} stages hide more of the latency", changed


def c_versions(text: str) -> Iterator[tuple[str, str]]:
    """The example under other compiler flags."""
    extra = ("", " -funroll-loops", " -ftree-vectorize", " -fno-math-errno", " -fomit-frame-pointer", " -fno-plt")
    for level, flag in product(("-O3", "-O1", "-Os"), extra):
        yield f"{level}{flag} makes faster code of it", text.replace("cflags = -O2", f"cflags = {level}{flag}", 1)


def prepare(device: str, root: Path) -> tuple[str, Iterator[tuple[str, str]]]:
    """Kernel and problem in `root`, and the versions to try."""
    if device == "cpu":
        folder, name, versions = ROOT / "examples" / "cpu_softmax", "softmax.c", c_versions
        problem = (folder / "test_softmax.py").read_text(encoding="utf-8")
        problem = problem.replace("timed: bool = False", "timed: bool = True")  # six timed workloads instead of two
        text = (folder / name).read_text(encoding="utf-8")
    else:
        folder, name, versions = ROOT / "skills" / "kernels" / "softmax", "softmax.py", triton_versions
        problem = (folder / "test_softmax.py").read_text(encoding="utf-8")
        text = (folder / "triton_template.py").read_text(encoding="utf-8")
    (root / "test_softmax.py").write_text(problem, encoding="utf-8")
    (root / name).write_text(text, encoding="utf-8")
    return name, versions(text)


def iterate(loop: Loop, experiment: str, hypothesis: str, content: str) -> dict[str, Any]:
    """One iteration; seconds of each tool, and how it ended."""
    seconds: dict[str, float] = {}

    def timed(tool: str, call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        answer = call()
        seconds[tool] = time.perf_counter() - begin
        return answer

    timed("apply_patch", lambda: loop.apply_patch(experiment, 1, hypothesis, content=content))
    verified = timed("verify", lambda: loop.verify(experiment))
    if verified.correct:
        timed("benchmark", lambda: loop.benchmark(experiment))
    decided = timed("decide", lambda: loop.decide(experiment))
    return {"hypothesis": hypothesis, "status": decided.status, "seconds": seconds}


def evaluations(root: Path, experiment: str) -> dict[str, list[dict[str, Any]]]:
    """What the journal says of each evaluation, by tool."""
    found: dict[str, list[dict[str, Any]]] = {"verify": [], "benchmark": []}
    for line in (root / "experiments" / experiment / "journal.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["tool"] in found and event["outcome"] == "ok":
            found[event["tool"]].append(event["data"]["evaluation"])
    return found


def run(device: str, iterations: int, pause_s: float, workloads: list[str] | None, root: Path) -> dict[str, Any]:
    """All iterations, as one JSON document."""
    name, versions = prepare(device, root)
    evaluator = LocalEvaluator(sys.executable, root / "cache")
    loop = Loop(root, evaluator=evaluator, detect=detect_all, present=Present())
    try:
        gpu: Any = "cpu" if device == "cpu" else "auto"
        begun = loop.baseline(
            name, gpu=gpu, target_metric="gbps", target_value=OUT_OF_REACH, max_iterations=1000, workloads=workloads
        )
        made: list[dict[str, Any]] = []
        for hypothesis, content in versions:
            if len(made) == iterations:
                break
            if "apply_patch" not in loop.log(begun.experiment).next:
                loop.diagnose(begun.experiment)
            time.sleep(pause_s)
            made.append(iterate(loop, begun.experiment, hypothesis, content))
            print(json.dumps(made[-1]), flush=True)
        here = evaluator.torch_device(device)
        found = evaluations(root, begun.experiment)
    finally:
        evaluator.close()
    return {
        "device": here.name,
        "versions": here.versions,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "pause_s": pause_s,
        "workloads": {
            "all": max(len(one["workloads"]) for one in found["verify"]),
            "timed": max(len(one["workloads"]) for one in found["benchmark"]),
        },
        "iterations": made,
        "evaluations": found,
    }


def table(document: dict[str, Any]) -> str:
    """The document for people."""
    whole = [i for i in document["iterations"] if set(i["seconds"]) == set(TOOLS)]
    totals = sorted(sum(i["seconds"].values()) for i in whole)
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    counts = document["workloads"]
    lines = [
        "# What one iteration costs",
        "",
        f"{document['device']}, {versions}, {document['date']}: `python experiments/overhead/iteration.py`, "
        f"{len(whole)} iterations of apply_patch, verify, benchmark and decide on a softmax with {counts['timed']} "
        f"timed of {counts['all']} workloads, through the real loop, {document['pause_s']:g} s after the one before. "
        f"From `apply_patch` to `decide`: **median "
        f"{statistics.median(totals):.2f} s**, fastest {totals[0]:.2f} s, slowest {totals[-1]:.2f} s.",
        "",
        "| tool | median s | longest s |",
        "|---|---|---|",
    ]
    for tool in TOOLS:
        seconds = [i["seconds"][tool] for i in whole]
        lines.append(f"| {tool} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |")
    for tool, title in (("verify", "Checking"), ("benchmark", "Timing")):
        lines += ["", f"## {title}", "", "Parts of processes that work side by side add up to more than the whole.", ""]
        lines += ["| part | median s |", "|---|---|", *_parts(document["evaluations"][tool])]
    return "\n".join(lines) + "\n"


def _parts(found: list[dict[str, Any]]) -> list[str]:
    names = {name for evaluation in found for name in evaluation["spent"]}
    medians = {name: statistics.median(e["spent"].get(name, 0.0) for e in found) for name in names}
    whole = statistics.median(e["wall_s"] for e in found)
    ordered = sorted(medians.items(), key=lambda item: -item[1])
    return [f"| the whole evaluation | {whole:.3f} |", *(f"| {name} | {s:.3f} |" for name, s in ordered)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="cpu or cuda:N (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds before each patch (default: %(default)s)")
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help="instead of all that the problem has")
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="kopt-iteration-"))
    try:
        document = run(options.device, options.iterations, options.pause, options.workloads, root)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "iteration.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    text = table(document)
    (options.out / "iteration.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
