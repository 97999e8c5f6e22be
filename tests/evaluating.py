"""Run candidates through the real evaluator: helpers for the tests of cheats, controls and public bugs.

Also what makes a list of tricks a script: a table on the screen, and a file of rows that experiments/cheats/table.py
makes the pages from.
"""

from __future__ import annotations

import ast
import atexit
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

from kopt_mcp.evaluator import sandbox
from kopt_mcp.evaluator.records import Evaluation, Job, ProblemInfo

if TYPE_CHECKING:  # a machine that only runs the GPU tricks need not have what the client imports
    from kopt_mcp.evaluator.client import LocalEvaluator

CHEATS = Path(__file__).parent / "cheats"
PROBLEMS = CHEATS / "problems"
TIMEOUT_S = 60.0
FLOOR = 0.2
"""As if the machine were that noisy: a ratio need only be known to 40 %, which takes a few blocks and not thirty."""

FALSE_SPEED = 1.5
"""A ratio beyond which an accepted trick has got itself a speed that is not its own: the sure end of the interval, by
which a candidate is kept or not."""

TRUE_WITHIN = 1.1
"""Factor within which a reported time must be the true one, where that is known."""

Kind = Literal["verify", "benchmark", "confirm"]


@dataclass(frozen=True)
class Case:
    """A candidate, and what its file says about itself; it is read, never imported."""

    path: Path
    problem: str
    expected: tuple[str, ...]
    timed: bool
    """Whether the trick is about time, so that it is benchmarked too."""
    faster: bool
    """Whether it must be found faster than the incumbent by far."""
    workloads: tuple[str, ...]
    """Which workloads it needs; the test's own choice where it does not say."""
    timeout_s: float
    open: str
    """Why this trick still gets through; empty for all that are caught."""
    incumbent: str = ""
    """Beside what it is timed, if not beside the problem's honest kernel."""
    true_us: float = 0.0
    """What it takes in truth, where it may be faster than that and only claim more."""

    @property
    def name(self) -> str:
        return self.path.stem


def case(path: Path) -> Case:
    """Read a candidate's constants: EXPECTED, and perhaps those of `_constants`."""
    found: dict[str, Any] = {}
    if path.suffix == ".py":
        found = _constants(path.read_text(encoding="utf-8"))
    else:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = _constants("\n".join(line.removeprefix("// test: ") for line in lines if line.startswith("// test: ")))
    return Case(
        path,
        found.get("PROBLEM", "softmax"),
        found.get("EXPECTED", ("PASSED",)),
        found.get("TIMED", False),
        found.get("FASTER", False),
        found.get("WORKLOADS", ()),
        found.get("TIMEOUT_S", TIMEOUT_S),
        found.get("OPEN", ""),
        found.get("INCUMBENT", ""),
        found.get("TRUE_US", 0.0),
    )


def _constants(text: str) -> dict[str, Any]:
    assignments = [n for n in ast.parse(text).body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)]
    wanted = {"EXPECTED", "PROBLEM", "TIMED", "FASTER", "WORKLOADS", "TIMEOUT_S", "OPEN", "INCUMBENT", "TRUE_US"}
    return {n.targets[0].id: ast.literal_eval(n.value) for n in assignments if n.targets[0].id in wanted}


@contextmanager
def running_evaluator() -> Iterator[LocalEvaluator]:
    """An evaluator of one thread: threads that wait for each other are slow on a busy machine."""
    from kopt_mcp.evaluator.client import LocalEvaluator

    with patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):
        local = LocalEvaluator(sys.executable, _ceilings_folder())
        local.torch_device("cpu")  # so that its processes are there before any are counted
        try:
            yield local
        finally:
            local.close()


@cache
def _ceilings_folder() -> Path:
    """Where the measured ceilings are kept, so that a run of the tests measures them once."""
    folder = tempfile.mkdtemp(prefix="kopt-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def evaluate(
    evaluator: LocalEvaluator,
    candidate: Path,
    problem: str | Path = "softmax",
    kind: Kind = "verify",
    incumbent: Path | None = None,
    timeout_s: float = TIMEOUT_S,
    workloads: tuple[str, ...] | None = None,
) -> Evaluation:
    """One job on the CPU."""
    from kopt_mcp.watch import Watch

    file = problem if isinstance(problem, Path) else PROBLEMS / f"{problem}.py"
    job = Job(
        kind,
        str(file),
        digest(file),
        str(candidate),
        digest(candidate),
        "cpu",
        workloads,
        incumbent=str(incumbent) if incumbent else None,
        incumbent_sha256=digest(incumbent) if incumbent else None,
        floor=FLOOR if incumbent else 0.0,
        timeout_s=timeout_s,
    )
    return evaluator.evaluate(job, Watch())


def honest(problem: str) -> Path:
    """The incumbent of a problem."""
    return PROBLEMS / f"{problem}_honest.py"


def ready(evaluator: LocalEvaluator, problem: str = "softmax") -> ProblemInfo:
    """Have the harness load this problem now: it lives with one only, and its processes are to be counted."""
    file = PROBLEMS / f"{problem}.py"
    return evaluator.describe(file, digest(file), "cpu")


def still_works(evaluator: LocalEvaluator, problem: str = "softmax") -> bool:
    """Whether an honest kernel passes now, at the cheapest workload, judged by the same harness."""
    cheapest = min(ready(evaluator, problem).workloads, key=lambda w: w.bytes).name
    return evaluate(evaluator, honest(problem), problem, workloads=(cheapest,)).status == "PASSED"


def verdict(evaluator: LocalEvaluator, case: Case) -> Evaluation:
    """Correctness, and then time beside the honest incumbent where the trick is about time."""
    checked = evaluate(evaluator, case.path, case.problem, timeout_s=case.timeout_s)
    if checked.status != "PASSED" or not case.timed:
        return checked
    beside = honest(case.incumbent or case.problem)
    return evaluate(evaluator, case.path, case.problem, "benchmark", beside, case.timeout_s)


def caught(trick: Case, result: Evaluation) -> bool:
    """Whether the verdict is one that the file expects, without a false speed; an honest kernel may be as fast as it
    is, and one that says so must be found faster."""
    if result.status not in trick.expected:
        return False
    if trick.path.parent.name == "controls":
        return not trick.faster or (result.ratio is not None and result.ratio.low > FALSE_SPEED)
    if trick.true_us:
        return all(w.timing is None or w.timing.latency_us > trick.true_us / TRUE_WITHIN for w in result.workloads)
    ratios = [result.ratio, *(w.ratio for w in result.workloads)]
    return all(ratio is None or ratio.low < FALSE_SPEED for ratio in ratios)


def row(trick: Case, judge: Callable[[Case], Evaluation]) -> dict[str, Any]:
    """One line of the table; an evaluator that breaks is a line too."""
    begin = time.perf_counter()
    try:
        result = judge(trick)
    except Exception as error:
        result = Evaluation("INCONCLUSIVE", f"{type(error).__name__}: {error}")
    return {
        "name": trick.name,
        "expected": list(trick.expected),
        "got": result.status,
        "right": caught(trick, result),
        "ratio": result.ratio.value if result.ratio else None,
        "low": result.ratio.low if result.ratio else None,
        "seconds": round(time.perf_counter() - begin, 2),
        "known": trick.open,
        "detail": result.detail,
        "notes": list(result.notes),
        "environment": result.environment,
        "isolation": result.isolation,
        "workloads": [asdict(w) for w in result.workloads],
    }


def run_all(cases: Sequence[Case], judge: Callable[[Case], Evaluation], target: Path, names: Sequence[str] = ()) -> int:
    """Run all, or those that are named; the number of wrong verdicts that are not known already."""
    rows = []
    for trick in cases:
        if names and trick.name not in names:
            continue
        rows.append(found := row(trick, judge))
        ratio = f"{found['ratio']:.2f}x" if found["ratio"] else ""
        mark = "ok" if found["right"] else "KNOWN" if found["known"] else "WRONG"
        print(
            f"{mark:5} {trick.name:38} {found['got']:20} {ratio:>8} {found['seconds']:6.1f} s  {found['detail'][:90]}"
        )
        sys.stdout.flush()
        target.write_text(json.dumps(rows, indent=1), encoding="utf-8")  # after each, in case of a time limit
    return sum(not r["right"] and not r["known"] for r in rows)


def processes() -> set[int]:
    """Everything that lives below this process."""
    return set(sandbox.descendants(os.getpid()))


def left_behind() -> tuple[set[int], set[str]]:
    """What a candidate might leave: processes, and shared memory in no folder, whose maker has ended."""
    table = Path("/proc/sysvipc/shm")
    rows = [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []
    return processes(), {row[1] for row in rows if not Path("/proc", row[4]).exists()}
