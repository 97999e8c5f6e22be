"""What the campaigns came to, a line each: python experiments/campaigns/table.py [EXPERIMENT ...]

Drawn from the journals, and from the client's `transcript.txt` beside each, which `run.py` leaves: kernel, seconds
since the server was started, tool, seconds of the call, answer.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kopt_mcp import optlog  # noqa: E402
from kopt_mcp.experiments import Experiments  # noqa: E402
from kopt_mcp.workspace import Workspace  # noqa: E402

HEAD = (
    "experiment",
    "from, to",
    "of the roof",
    "patches",
    "first kept after",
    "in all",
    "calls",
    "calls, device seconds a kept patch",
)
LINE = re.compile(r"^\S+ +(?P<at>[\d.]+)  (?P<tool>\w+) +(?P<s>[\d.]+) s  (?P<said>.*)$")
GOOD = ("IMPROVED", "TARGET_MET", "KEPT")
ON_DEVICE = ("baseline", "profile", "verify", "benchmark", "decide")
"""Tools that use the device; what they take besides that is counted too."""


def row(name: str, experiments: Experiments) -> list[str]:
    """One experiment; times are the client's."""
    state = experiments.replay(name)
    assert state is not None
    said = (experiments.folder / name / "transcript.txt").read_text(encoding="utf-8").splitlines()
    calls = [m for m in map(LINE.match, said) if m]
    unit = optlog.UNITS[state.setup.target_metric]
    start, end = state.setup.measurement.value, state.measured[state.best].value
    ends = Counter(i.decision.status for i in state.iterations if i.decision)
    kept = sum(ends[status] for status in GOOD)
    first = next(
        (m["at"] for m in calls if m["tool"] == "decide" and any(f"status={s}" in m["said"] for s in GOOD)), None
    )
    device = sum(float(m["s"]) for m in calls if m["tool"] in ON_DEVICE)
    return [
        name,
        f"{start:.4g} → {end:.4g} {unit} ({end / start:.2f}×)",
        f"{100 * optlog.closeness(state, end):.0f} %" if state.setup.roof else "",
        ", ".join(f"{count} {status}" for status, count in ends.most_common()),
        f"{float(first):.0f} s" if first else "–",
        f"{float(calls[-1]['at']):.0f} s",
        str(len(calls)),
        f"{len(calls) / kept:.0f}, {device / kept:.0f} s" if kept else "–",
    ]


def main(names: list[str]) -> None:
    """Print the table."""
    experiments = Experiments(Workspace(ROOT, None))
    names = names or [n for n in experiments.names() if (experiments.folder / n / "transcript.txt").is_file()]
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    for name in names:
        print("| " + " | ".join(row(name, experiments)) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
