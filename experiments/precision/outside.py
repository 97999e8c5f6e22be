"""What does the harness's own clock see of gains that are claimed on a GPU? True ones, and none.

    python experiments/precision/outside.py --out experiments/precision/h200 [--rounds 2]

Kernels of `tests/gpu/cheats/controls` beside torch's softmax, and one beside itself, which is looked into although
nothing is claimed; whatever is seen, nobody is suspected. Writes OUT/outside.md: for each workload the gain by the
runner's events, the gain by the harness's clock through `kopt_mcp/evaluator/gate.py`, and three standard errors of it.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kopt_mcp.evaluator import audit  # noqa: E402
from kopt_mcp.evaluator.harness import Harness  # noqa: E402
from kopt_mcp.evaluator.records import Evaluation, Job  # noqa: E402

CHEATS = ROOT / "tests" / "gpu" / "cheats"
EAGER = CHEATS / "t16_library_fallback.py"
ONE_ROW = CHEATS / "controls" / "c1_one_row_a_program.py"
PROBLEM = ROOT / "skills" / "kernels" / "softmax" / "test_softmax.py"
PAIRS = (
    ("unchanged", ONE_ROW, ONE_ROW),
    ("one row a program, for torch.softmax", ONE_ROW, EAGER),
    ("the same with a workspace, for torch.softmax", CHEATS / "controls" / "c2_workspace_kept.py", EAGER),
    ("the same on a side stream, for torch.softmax", CHEATS / "controls" / "side_stream_joined.py", EAGER),
    ("a graph, for torch.softmax", CHEATS / "controls" / "graph_of_live_data.py", EAGER),
)
SEEN = re.compile(r"(?P<workload>\S+): (?P<seen>-?[\d.]+) \(±(?P<doubt>[\d.]+)\)")


def digest(path: Path) -> str:
    """As a job names a file's content."""
    return sha256(path.read_bytes()).hexdigest()


def evaluate(harness: Harness, candidate: Path, incumbent: Path) -> Evaluation:
    """A whole benchmark of one beside the other."""
    problem = harness.problem(str(PROBLEM), digest(PROBLEM))
    job = Job(
        "benchmark",
        str(PROBLEM),
        digest(PROBLEM),
        str(candidate),
        digest(candidate),
        "cuda:0",
        None,
        incumbent=str(incumbent),
        incumbent_sha256=digest(incumbent),
    )
    return harness.evaluate(problem, job, lambda fraction, text: None)


def lines(title: str, evaluation: Evaluation) -> Iterator[str]:
    """A line for each workload that was looked into."""
    times = {r.workload: (r.timing, r.incumbent) for r in evaluation.workloads}
    for note in evaluation.notes:
        found = SEEN.match(note)
        timing, incumbent = times.get(found["workload"], (None, None)) if found else (None, None)
        if found and timing and incumbent:
            claimed = incumbent.latency_us - timing.latency_us
            cells = (f"{timing.latency_us:.1f}", f"{claimed:.2f}", found["seen"], found["doubt"])
            yield f"| {title} | {found['workload']} | {' | '.join(cells)} |"


def main() -> int:
    """Measure, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    page = ["| candidate | workload | us | gain claimed | gain seen | ± |", "|---|---|---|---|---|---|"]
    usual, audit._SEEN_SHARE = audit._AUDITED_GAIN, -1e9
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness("cuda:0", Path(folder))
        try:
            for _ in range(options.rounds):
                for title, candidate, incumbent in PAIRS:
                    audit._AUDITED_GAIN = -9.0 if candidate == incumbent else usual
                    evaluation = evaluate(harness, candidate, incumbent)
                    page += lines(title, evaluation)
                    print(f"{title}: {evaluation.status} {evaluation.detail}, {evaluation.wall_s} s", flush=True)
            about = ", ".join(f"{k} {v}" for k, v in evaluation.environment.items())
            head = f"{harness.torch_device.name}, {about}, {datetime.date.today().isoformat()}; microseconds a call."
        finally:
            harness.close()
    (options.out / "outside.md").write_text("\n".join([head, "", *page, ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
