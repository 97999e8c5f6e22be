"""From what a run of the tricks found to the tables of this page and of the project's README.

    python tests/gpu/test_gpu_cheats.py found.json            # on a GPU
    python tests/test_cheats.py found.json                    # on a CPU
    python experiments/cheats/table.py --take found.json h200 "NVIDIA H200, driver 580.159.04"
    python experiments/cheats/table.py

`--take` keeps a run beside this file; without it the tables are written anew, between their markers, from what is kept.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = {"h200": ROOT / "tests" / "gpu" / "cheats", "cpu": ROOT / "tests" / "cheats"}
UNLIKE = 1.05
"""A ratio from which the table also says how much of it is sure."""
KEPT = ("name", "expected", "got", "right", "ratio", "low", "known", "detail", "notes")
COMPARED = re.compile(r"t\d\d_")
"""Beginning of the eighteen tricks that other evaluators were tried with too."""
SUFFIXES = (".py", ".c", ".cpp")

Row = dict[str, Any]


def take(results: Path, run: str, about: str, today: datetime.date, folder: Path = HERE) -> None:
    """Keep what a run found: the verdicts, without the times of every workload, and what each candidate did then."""
    rows = json.loads(results.read_text(encoding="utf-8"))
    versions = next((r["environment"] for r in rows if r.get("environment")), {})
    words = [about, *(f"{name} {version}" for name, version in versions.items()), today.isoformat()]
    told = [{**_told(run, row["name"]), **{key: row[key] for key in KEPT}} for row in rows]
    kept = {"about": ", ".join(words), "rows": told}
    (folder / f"{run}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(run: str, folder: Path = HERE) -> tuple[str, list[Row]]:
    """Where and when a run was, and its rows."""
    kept = json.loads((folder / f"{run}.json").read_text(encoding="utf-8"))
    return kept["about"], kept["rows"]


def verdict(row: Row) -> str:
    """The status, and the speed where one was reported."""
    speed = f" at {row['ratio']:.2f}x" if row["ratio"] else ""
    if row["ratio"] and row["ratio"] > UNLIKE and row.get("low") is not None:
        speed += f", {row['low']:.2f}x for sure"
    return f"{row['got']}{speed}" + ("" if row["right"] else " (known)" if row["known"] else " (**WRONG**)")


def table(rows: Sequence[Row]) -> str:
    """One line a candidate."""
    lines = ["| candidate | what it does | verdict |", "|---|---|---|"]
    told = (f"| `{r['name']}` | {r['what'].replace('|', chr(92) + '|')} | {verdict(r)} |" for r in rows)
    return "\n".join([*lines, *told])


def about(run: str) -> str:
    """Where and when a run was."""
    return f"{load(run)[0]}."


def summary() -> str:
    """The short table for the project's README."""
    lines = [
        "| tried | candidates | caught | right, and at an honest time | got through, known | got through |",
        "|---|---|---|---|---|---|",
    ]
    parts: list[tuple[str, list[Row]]] = []
    for run, place in (("h200", "on an H200"), ("cpu", "on a CPU")):
        rows = load(run)[1]
        tricks = [r for r in rows if not r["control"]]
        compared = [r for r in tricks if COMPARED.match(r["name"])]
        if compared:
            parts.append((f"the eighteen that public evaluators were tried with, {place}", compared))
        parts.append((f"{'other ' if compared else ''}tricks {place}", [r for r in tricks if r not in compared]))
        parts.append((f"honest kernels {place}", [r for r in rows if r["control"]]))
    return "\n".join([*lines, *(_counts(name, rows) for name, rows in parts)])


def _counts(name: str, rows: Sequence[Row]) -> str:
    passed = sum(r["right"] and r["got"] == "PASSED" for r in rows)
    known = sum(not r["right"] and bool(r["known"]) for r in rows)
    wrong = sum(not r["right"] and not r["known"] for r in rows)
    caught = sum(r["right"] for r in rows) - passed
    return f"| {name} | {len(rows)} | {caught} | {passed} | {known} | {wrong} |"


def _part(run: str, wanted: Callable[[Row], bool]) -> str:
    return table([row for row in load(run)[1] if wanted(row)])


PARTS: dict[Path, dict[str, Callable[[], str]]] = {
    HERE / "README.md": {
        "h200": lambda: about("h200"),
        "compared": lambda: _part("h200", lambda r: bool(COMPARED.match(r["name"]))),
        "others": lambda: _part("h200", lambda r: not r["control"] and not COMPARED.match(r["name"])),
        "controls": lambda: _part("h200", lambda r: r["control"]),
        "cpu": lambda: about("cpu"),
        "cpu-tricks": lambda: _part("cpu", lambda r: not r["control"]),
        "cpu-controls": lambda: _part("cpu", lambda r: r["control"]),
    },
    ROOT / "README.md": {"cheats": summary},
}
"""What is generated, by page and marker."""


def rendered(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """A page with its generated parts made anew.

    Raises:
        ValueError: a marker is missing.
    """
    for name, make in parts.items():
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        new = make()
        text, found = pattern.subn(lambda m, new=new: f"{m[1]}{new}\n{m[2]}", text, count=1)  # type: ignore[misc]
        if not found:
            raise ValueError(f"there is no marker <!-- generated: {name} -->")
    return text


def _told(run: str, name: str) -> Row:
    """Whether a candidate is a control, and what it does in its own file's first sentence."""
    places = [FOLDERS[run] / "controls", FOLDERS[run]]
    path = next(p for place in places for s in SUFFIXES if (p := place / f"{name}{s}").is_file())
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        told = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
    else:
        comments = [line.removeprefix("// ") for line in text.splitlines() if line.startswith("// ")]
        told = next(line for line in comments if not line.startswith(("test:", "kopt:")))
    return {"control": path.parent.name == "controls", "what": " ".join(told.split()).rstrip(".")}


def main() -> None:
    """Take a run, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", nargs=3, metavar=("RESULTS", "RUN", "ABOUT"), help="keep a run as RUN (h200, cpu)")
    options = parser.parse_args()
    if options.take:
        take(Path(options.take[0]), options.take[1], options.take[2], datetime.date.today())
        return
    for page, parts in PARTS.items():
        page.write_text(rendered(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


if __name__ == "__main__":
    main()
